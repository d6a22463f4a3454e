// Python bindings of the arena (the dumbbell simulator): its plan of links, flows and path changes, its run and its
// report.
#include "native/sim/arena/arena.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "native/bind/libraries.h"
#include "native/bind/unlocked.h"

namespace py = pybind11;

namespace weft::bind {
namespace {

using sim::i64;
using sim::u32;
using sim::u64;

struct BoundPlan : sim::ArenaPlan {
  Chosen chosen;
};

void bind_links(py::module_& module) {
  py::class_<sim::LinkConfig>(module, "LinkConfig", "A queue and a wire: rate, delay, limit, marks, losses.")
      .def(py::init([](i64 bytes_per_s, i64 delay_ns, i64 queue_bytes_max, i64 mark_from_bytes, i64 mark_full_bytes,
                       double loss, i64 jitter_ns, double reorder, i64 reorder_ns_max) {
             return sim::LinkConfig{bytes_per_s, delay_ns,  queue_bytes_max, mark_from_bytes, mark_full_bytes,
                                    loss,        jitter_ns, reorder,         reorder_ns_max};
           }),
           py::kw_only(), py::arg("bytes_per_s") = 0, py::arg("delay_ns") = 0, py::arg("queue_bytes_max") = 0,
           py::arg("mark_from_bytes") = 0, py::arg("mark_full_bytes") = 0, py::arg("loss") = 0.0,
           py::arg("jitter_ns") = 0, py::arg("reorder") = 0.0, py::arg("reorder_ns_max") = 0)
      .def_readwrite("bytes_per_s", &sim::LinkConfig::bytes_per_s)
      .def_readwrite("delay_ns", &sim::LinkConfig::delay_ns)
      .def_readwrite("queue_bytes_max", &sim::LinkConfig::queue_bytes_max)
      .def_readwrite("mark_from_bytes", &sim::LinkConfig::mark_from_bytes)
      .def_readwrite("mark_full_bytes", &sim::LinkConfig::mark_full_bytes)
      .def_readwrite("loss", &sim::LinkConfig::loss)
      .def_readwrite("jitter_ns", &sim::LinkConfig::jitter_ns)
      .def_readwrite("reorder", &sim::LinkConfig::reorder)
      .def_readwrite("reorder_ns_max", &sim::LinkConfig::reorder_ns_max);
  py::class_<sim::PathChange>(module, "PathChange",
                              "A change of a path at a time; negative values leave a property unchanged.")
      .def(py::init([](i64 at_ns, u32 path, i64 bytes_per_s, i64 delay_ns, double loss, int up) {
             return sim::PathChange{at_ns, path, bytes_per_s, delay_ns, loss, up};
           }),
           py::kw_only(), py::arg("at_ns"), py::arg("path"), py::arg("bytes_per_s") = -1, py::arg("delay_ns") = -1,
           py::arg("loss") = -1.0, py::arg("up") = -1)
      .def_readwrite("at_ns", &sim::PathChange::at_ns)
      .def_readwrite("path", &sim::PathChange::path)
      .def_readwrite("bytes_per_s", &sim::PathChange::bytes_per_s)
      .def_readwrite("delay_ns", &sim::PathChange::delay_ns)
      .def_readwrite("loss", &sim::PathChange::loss)
      .def_readwrite("up", &sim::PathChange::up);
  py::class_<sim::LinkTotals>(module, "LinkTotals", "Counts of datagrams on a link.")
      .def_readonly("offered", &sim::LinkTotals::offered)
      .def_readonly("delivered", &sim::LinkTotals::delivered)
      .def_readonly("lost", &sim::LinkTotals::lost)
      .def_readonly("dropped", &sim::LinkTotals::dropped)
      .def_readonly("swallowed", &sim::LinkTotals::swallowed)
      .def_readonly("marked", &sim::LinkTotals::marked)
      .def_readonly("bytes_delivered", &sim::LinkTotals::bytes_delivered);
}

void bind_plan(py::module_& module) {
  py::class_<sim::FlowPlan>(module, "FlowPlan", "Messages of one size from one host to another, `ahead` at a time.")
      .def(py::init(
               [](u32 from_host, u32 to_host, i64 start_ns, i64 stop_ns, u64 message_bytes, u64 messages, u32 ahead) {
                 return sim::FlowPlan{from_host, to_host, start_ns, stop_ns, message_bytes, messages, ahead};
               }),
           py::kw_only(), py::arg("from_host"), py::arg("to_host"), py::arg("start_ns") = 0, py::arg("stop_ns") = -1,
           py::arg("message_bytes") = 1 << 20, py::arg("messages") = 0, py::arg("ahead") = 4)
      .def_readwrite("from_host", &sim::FlowPlan::from)
      .def_readwrite("to_host", &sim::FlowPlan::to)
      .def_readwrite("start_ns", &sim::FlowPlan::start_ns)
      .def_readwrite("stop_ns", &sim::FlowPlan::stop_ns)
      .def_readwrite("message_bytes", &sim::FlowPlan::message_bytes)
      .def_readwrite("messages", &sim::FlowPlan::messages)
      .def_readwrite("ahead", &sim::FlowPlan::ahead);
  py::class_<BoundPlan>(module, "ArenaPlan", "A network, its flows and changes, and the policies.")
      .def(py::init<>())
      .def_readwrite("seed", &BoundPlan::seed)
      .def_readwrite("segment_bytes", &BoundPlan::segment_bytes)
      .def_readwrite("paths", &BoundPlan::paths)
      .def_readwrite("ack_loss", &BoundPlan::ack_loss)
      .def_readwrite("sender_port", &BoundPlan::sender_port)
      .def_readwrite("receiver_port", &BoundPlan::receiver_port)
      .def_readwrite("changes", &BoundPlan::changes)
      .def_readwrite("flows", &BoundPlan::flows)
      .def_readwrite("window_bytes_max", &BoundPlan::window_bytes_max)
      .def_readwrite("rto_ns_min", &BoundPlan::rto_ns_min)
      .def_readwrite("rto_ns_max", &BoundPlan::rto_ns_max)
      .def_readwrite("port_buffer_bytes", &BoundPlan::port_buffer_bytes)
      .def_readwrite("link_bytes_per_s", &BoundPlan::link_bytes_per_s)
      .def_readwrite("limit_ns", &BoundPlan::limit_ns)
      .def_readwrite("measure_from_ns", &BoundPlan::measure_from_ns)
      .def_readwrite("trace_ns", &BoundPlan::trace_ns)
      .def_readwrite("recording_bytes_max", &BoundPlan::recording_bytes_max)
      .def("choose", &choose<BoundPlan>, "Sets one policy by its name or path; ValueError if there is none.",
           py::arg("family"), py::arg("name"), py::arg("directories") = std::vector<std::string>{},
           py::arg("params") = py::bytes())
      .def("choose_text", &choose_text<BoundPlan>,
           "The same by text with parameters, as in a knob; returns the policy's name.", py::arg("family"),
           py::arg("text"), py::arg("directories") = std::vector<std::string>{});
}

void bind_report(py::module_& module) {
  py::class_<sim::FlowReport>(module, "FlowReport", "Results of one flow.")
      .def_readonly("delivered_bytes", &sim::FlowReport::delivered_bytes)
      .def_readonly("goodput_bytes_per_s", &sim::FlowReport::goodput_bytes_per_s)
      .def_readonly("messages", &sim::FlowReport::messages)
      .def_readonly("finished_ns", &sim::FlowReport::finished_ns)
      .def_readonly("message_ns_p50", &sim::FlowReport::message_ns_p50)
      .def_readonly("message_ns_p99", &sim::FlowReport::message_ns_p99)
      .def_readonly("copies_max", &sim::FlowReport::copies_max)
      .def_readonly("copies_beyond_window", &sim::FlowReport::copies_beyond_window)
      .def_readonly("sent", &sim::FlowReport::sent)
      .def_readonly("segments_duplicate", &sim::FlowReport::segments_duplicate);
  py::class_<sim::PathTotals>(module, "PathTotals", "Traffic of one path, in each direction.")
      .def_readonly("forward", &sim::PathTotals::forward)
      .def_readonly("back", &sim::PathTotals::back)
      .def_readonly("queue_bytes_p99", &sim::PathTotals::queue_bytes_p99);
  py::class_<sim::PortTotals>(module, "PortTotals", "Traffic of one host's receiving port.")
      .def_readonly("host", &sim::PortTotals::host)
      .def_readonly("incoming", &sim::PortTotals::in)
      .def_readonly("queue_bytes_p99", &sim::PortTotals::queue_bytes_p99);
  py::class_<sim::Trace>(module, "Trace", "Samples in row-major order: a row per time, a column per flow (or path).")
      .def_readonly("at_ns", &sim::Trace::at_ns)
      .def_readonly("window_bytes", &sim::Trace::window_bytes)
      .def_readonly("inflight_bytes", &sim::Trace::inflight_bytes)
      .def_readonly("pacing_bytes_per_s", &sim::Trace::pacing_bytes_per_s)
      .def_readonly("delivered_bytes", &sim::Trace::delivered_bytes)
      .def_readonly("queue_bytes", &sim::Trace::queue_bytes)
      .def_readonly("path_bytes", &sim::Trace::path_bytes);
  py::class_<sim::ArenaReport>(module, "ArenaReport", "Results of a run; `violation` is empty if all invariants held.")
      .def_readonly("violation", &sim::ArenaReport::violation)
      .def_readonly("violations", &sim::ArenaReport::violations)
      .def_readonly("fingerprint", &sim::ArenaReport::fingerprint)
      .def_readonly("ended_ns", &sim::ArenaReport::ended_ns)
      .def_readonly("steps", &sim::ArenaReport::steps)
      .def_readonly("jain", &sim::ArenaReport::jain)
      .def_readonly("goodput_bytes_per_s", &sim::ArenaReport::goodput_bytes_per_s)
      .def_readonly("message_ns_p50", &sim::ArenaReport::message_ns_p50)
      .def_readonly("message_ns_p99", &sim::ArenaReport::message_ns_p99)
      .def_readonly("policies_failed", &sim::ArenaReport::policies_failed)
      .def_readonly("policy_failure", &sim::ArenaReport::policy_failure)
      .def_readonly("storage_bytes_max", &sim::ArenaReport::storage_bytes_max)
      .def_readonly("flows", &sim::ArenaReport::flows)
      .def_readonly("paths", &sim::ArenaReport::paths)
      .def_readonly("ports", &sim::ArenaReport::ports)
      .def_readonly("trace", &sim::ArenaReport::trace)
      .def_property_readonly("recording", [](const sim::ArenaReport& self) {
        return py::bytes(reinterpret_cast<const char*>(self.recording.data()), self.recording.size());
      });
  module.def(
      "run_arena",
      [](const BoundPlan& plan) {
        const std::string complaint = sim::Arena::complaint(plan);
        if (!complaint.empty()) throw py::value_error("the plan needs " + complaint);
        const Unlocked others_run;
        return sim::run_arena(plan);
      },
      "Runs a plan to its end; ValueError if it is invalid.", py::arg("plan"));
}

}  // namespace

void bind_arena(py::module_& module) {
  bind_links(module);
  bind_plan(module);
  bind_report(module);
}

}  // namespace weft::bind
