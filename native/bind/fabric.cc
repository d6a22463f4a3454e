// Python bindings of the packet-level simulator: its plan and report as numpy arrays, and a run, in steps of a given
// number of packet-hops.
#include "native/sim/fabric/fabric.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "native/bind/libraries.h"
#include "native/bind/unlocked.h"

namespace py = pybind11;

namespace weft::bind {
namespace {

using sim::i32;
using sim::i64;
using sim::u16;
using sim::u32;

struct BoundFabricPlan : sim::FabricPlan {
  Chosen chosen;
};

// Converts a numpy array to a vector of records; raises TypeError if numpy cannot convert the elements to T.
template <class T>
std::vector<T> rows(const char* name, const py::array& given) {
  const auto array = py::array_t<T, py::array::c_style | py::array::forcecast>::ensure(given);
  if (!array) {
    PyErr_Clear();
    throw py::type_error(std::string(name) + ": the dtype does not match the plan's record");
  }
  return std::vector<T>(array.data(), array.data() + array.size());
}

template <class T>
py::array_t<T> array_of(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::array table_of(const std::vector<i64>& values, std::size_t columns) {
  py::array_t<i64> array = array_of(values);
  const auto width = static_cast<py::ssize_t>(columns);
  if (width == 0) return array;
  return array.reshape({static_cast<py::ssize_t>(values.size()) / width, width});
}

void set_network(BoundFabricPlan& plan, u32 hosts, u32 switches, const py::array& ports, const py::array& group_of,
                 const py::array& route, const py::array& set_begin, const py::array& set_ports,
                 const py::array& route_at_ns) {
  plan.hosts = hosts;
  plan.switches = switches;
  plan.ports = rows<sim::PortPlan>("ports", ports);
  plan.group_of = rows<u32>("group_of", group_of);
  plan.groups = 0;
  for (const u32 group : plan.group_of) plan.groups = std::max(plan.groups, group + 1);
  plan.route = rows<i32>("route", route);
  plan.set_begin = rows<u32>("set_begin", set_begin);
  plan.set_ports = rows<u32>("set_ports", set_ports);
  plan.route_at_ns = rows<i64>("route_at_ns", route_at_ns);
}

void set_work(BoundFabricPlan& plan, const py::array& transfers, const py::array& dependencies) {
  plan.transfers = rows<sim::TransferPlan>("transfers", transfers);
  plan.dependencies = rows<sim::DependencyPlan>("dependencies", dependencies);
}

// A fabric and its plan. The plan must live as long as the fabric, which refers to it.
struct BoundFabric {
  explicit BoundFabric(std::shared_ptr<BoundFabricPlan> given) : plan(std::move(given)) {
    const std::string complaint = sim::complaint(*plan);
    if (!complaint.empty()) throw py::value_error("the plan needs " + complaint);
    fabric = std::make_unique<sim::Fabric>(*plan);
  }
  std::shared_ptr<BoundFabricPlan> plan;
  std::unique_ptr<sim::Fabric> fabric;
};

using Ends = py::array_t<u32, py::array::c_style | py::array::forcecast>;

constexpr const char* kEcmp[] = {"hashed", "even", "adaptive", "drill"};  // indexed by sim::Ecmp

// Returns the numbers of the host and switch ports that each path passes: one row per path, and -1 after its last port.
py::array routes_of(const sim::FabricNet& net, u32 hosts, const Ends& ends) {
  if (ends.ndim() != 2 || ends.shape(1) != 3) throw py::value_error("ends must have columns: from host, to host, path");
  const auto rows = ends.unchecked<2>();
  constexpr std::size_t width = sim::FabricNet::kHopsMax;
  std::vector<i64> made(static_cast<std::size_t>(rows.shape(0)) * width, -1);
  for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
    if (rows(i, 0) >= hosts || rows(i, 1) >= hosts || rows(i, 2) > 255) {
      throw py::value_error("a row of ends names a host or a path that does not exist");
    }
    u32 ports[width];
    const std::size_t count = net.ports_of(rows(i, 0), rows(i, 1), static_cast<core::u8>(rows(i, 2)), ports);
    std::copy_n(ports, count, made.begin() + i * static_cast<py::ssize_t>(width));
  }
  return table_of(made, width);
}

// Like routes_of(), for a plan that no simulation runs yet. The plan must be valid.
py::array planned_routes_of(const BoundFabricPlan& self, const Ends& ends) {
  const std::string complaint = sim::complaint(self);
  if (!complaint.empty()) throw py::value_error("the plan needs " + complaint);
  const sim::FabricRules rules;
  sim::FabricNet net;
  net.open(self, &rules);
  return routes_of(net, self.hosts, ends);
}

// Policy set 0 is the plan's own policies; another number makes all sets up to it, as copies of the plan's own.
std::string choose_of_set(BoundFabricPlan& self, const std::string& family, const std::string& text,
                          const std::vector<std::string>& directories, u16 policy_set) {
  if (policy_set == 0) return choose_text(&self.chosen, self, family, text, directories);
  while (self.policy_sets.size() < policy_set) {
    self.policy_sets.push_back({self.window, self.path, self.loss, self.credit});
  }
  return choose_text(&self.chosen, self.policy_sets[policy_set - 1u], family, text, directories);
}

using PlanClass = py::class_<BoundFabricPlan, std::shared_ptr<BoundFabricPlan>>;

void bind_plan_calls(PlanClass* plan) {
  using P = BoundFabricPlan;
  plan->def("set_network", &set_network, "Nodes, ports and routes, as native/sim/fabric/fabric_plan.h says.",
            py::kw_only(), py::arg("hosts"), py::arg("switches"), py::arg("ports"), py::arg("group_of"),
            py::arg("route"), py::arg("set_begin"), py::arg("set_ports"), py::arg("route_at_ns"))
      .def(
          "set_changes",
          [](P& self, const py::array& changes) { self.changes = rows<sim::PortChange>("changes", changes); },
          "Changes of network ports, sorted by time: down or up, rate, loss.", py::arg("changes"))
      .def(
          "set_choices",
          [](P& self, const py::array& choices) { self.choices = rows<sim::PathChoice>("choices", choices); },
          "Rows (at_ns, from, to, path, takes): from at_ns on, packets on `path` take the links of path `takes`.",
          py::arg("choices"))
      .def("set_work", &set_work, "Transfers, and their dependencies.", py::arg("transfers"), py::arg("dependencies"))
      .def("routes", &planned_routes_of, "Each path's network ports, as Fabric.routes returns them.", py::arg("ends"))
      .def("choose", &choose<P>, "Sets one policy by its name or path; ValueError if there is none.", py::arg("family"),
           py::arg("name"), py::arg("directories") = std::vector<std::string>{}, py::arg("params") = py::bytes())
      .def("choose_text", &choose_of_set, "Sets a policy by a text as in a knob (name:key=value); returns its name.",
           py::arg("family"), py::arg("text"), py::arg("directories") = std::vector<std::string>{},
           py::arg("policy_set") = 0)
      .def(
          "set_policy_sets",
          [](P& self, const py::array& of_transfer) { self.policy_set_of = rows<u16>("policy sets", of_transfer); },
          "For each transfer the number of its policy set; 0: the plan's own policies.", py::arg("of_transfer"))
      .def(
          "complaint", [](const P& self) { return sim::complaint(self); }, "Why the plan cannot run; empty if it can.")
      .def("estimated_bytes", [](const P& self) { return sim::estimated_bytes(self); }, "Estimated memory of a run.");
}

void bind_fabric_plan(py::module_& module) {
  using P = BoundFabricPlan;
  PlanClass plan(module, "FabricPlan", "A network, its transfers and the policies.");
  plan.def(py::init<>())
      .def_readwrite("seed", &P::seed)
      .def_readwrite("threads", &P::threads)
      .def_readwrite("check", &P::check)
      .def_readwrite("limit_ns", &P::limit_ns)
      .def_property(
          "ecmp", [](const P& self) { return std::string(kEcmp[static_cast<std::size_t>(self.ecmp)]); },
          [](P& self, const std::string& name) {
            const auto* const found = std::find(std::begin(kEcmp), std::end(kEcmp), name);
            if (found == std::end(kEcmp)) throw py::value_error("no such ecmp: " + name);
            self.ecmp = static_cast<sim::Ecmp>(found - std::begin(kEcmp));
          })
      .def_readwrite("trim", &P::trim)
      .def_readwrite("priority", &P::priority)
      .def_readwrite("header_queue_bytes_max", &P::header_queue_bytes_max)
      .def_readwrite("buffer_bytes", &P::buffer_bytes)
      .def_readwrite("buffer_alpha", &P::buffer_alpha)
      .def_readwrite("pause_bytes", &P::pause_bytes)
      .def_readwrite("resume_bytes", &P::resume_bytes)
      .def_readwrite("host_delay_ns", &P::host_delay_ns)
      .def_readwrite("host_jitter_ns", &P::host_jitter_ns)
      .def_readwrite("paths", &P::paths)
      .def_readwrite("segment_bytes", &P::segment_bytes)
      .def_readwrite("wire_overhead_bytes", &P::wire_overhead_bytes)
      .def_readwrite("burst_bytes_max", &P::burst_bytes_max)
      .def_readwrite("ahead", &P::ahead)
      .def_readwrite("receives_ready", &P::receives_ready)
      .def_readwrite("rtt_ns", &P::rtt_ns)
      .def_readwrite("rtt_expected_ns", &P::rtt_expected_ns)
      .def_readwrite("ack_bytes", &P::ack_bytes)
      .def_readwrite("ack_delay_ns", &P::ack_delay_ns)
      .def_readwrite("window_bytes_max", &P::window_bytes_max)
      .def_readwrite("rto_ns_min", &P::rto_ns_min)
      .def_readwrite("rto_ns_max", &P::rto_ns_max)
      .def_readwrite("peer_silence_ns", &P::peer_silence_ns)
      .def_readwrite("speculative_bytes", &P::speculative_bytes)
      .def_readwrite("link_bytes_per_s", &P::link_bytes_per_s)
      .def_readwrite("sample_ns", &P::sample_ns)
      .def_readwrite("sample_ports", &P::sample_ports)
      .def_readwrite("sample_streams", &P::sample_streams)
      .def_readwrite("trace_ns", &P::trace_ns)
      .def_readwrite("recording_bytes_max", &P::recording_bytes_max);
  bind_plan_calls(&plan);
}

void bind_totals(py::module_& module) {
  using T = sim::FabricTotals;
  py::class_<T>(module, "FabricTotals", "Totals of a run so far.")
      .def_readonly("ended_ns", &T::ended_ns)
      .def_readonly("packet_hops", &T::packet_hops)
      .def_readonly("data_packets", &T::data_packets)
      .def_readonly("segments", &T::segments)
      .def_readonly("windows", &T::windows)
      .def_readonly("transfers_done", &T::transfers_done)
      .def_readonly("violations", &T::violations)
      .def_readonly("policies_failed", &T::policies_failed)
      .def_readonly("storage_bytes", &T::storage_bytes)
      .def_readonly("fingerprint", &T::fingerprint)
      .def_readonly("finished", &T::finished);
}

py::dict samples_of(BoundFabric& self) {
  const sim::FabricSamples& samples = self.fabric->samples();
  py::dict made;
  made["at_ns"] = array_of(samples.at_ns);
  made["queue_bytes"] = table_of(samples.queue_bytes, self.plan->sample_ports.size());
  made["port_bytes"] = table_of(samples.port_bytes, self.plan->sample_ports.size());
  made["window_bytes"] = table_of(samples.window_bytes, self.plan->sample_streams.size());
  made["inflight_bytes"] = table_of(samples.inflight_bytes, self.plan->sample_streams.size());
  made["sent_bytes"] = table_of(samples.sent_bytes, self.plan->sample_streams.size());
  made["received_bytes"] = table_of(samples.received_bytes, self.plan->sample_streams.size());
  made["pacing_bytes_per_s"] = table_of(samples.pacing_bytes_per_s, self.plan->sample_streams.size());
  made["queue_bytes_max"] = array_of(samples.queue_bytes_max);
  made["queue_bytes_sum"] = array_of(samples.queue_bytes_sum);
  return made;
}

// Returns one record per connection of the simulation: its two hosts, and the flow counters of both ends merged.
py::array streams_of(BoundFabric& self) {
  py::list names, formats, offsets;
  const auto add = [&](const char* name, const py::dtype& format, std::size_t offset) {
    names.append(name);
    formats.append(format);
    offsets.append(offset);
  };
  add("from", py::dtype::of<u32>(), offsetof(sim::StreamReport, from));
  add("to", py::dtype::of<u32>(), offsetof(sim::StreamReport, to));
#define WEFT_STREAM_COLUMN(name, unit, kind, sentence) \
  add(#name, py::dtype::of<i64>(), offsetof(sim::StreamReport, counters) + offsetof(telemetry::FlowCounters, name));
  WEFT_FLOW_COUNTER_TABLE(WEFT_STREAM_COLUMN)
#undef WEFT_STREAM_COLUMN
  const std::vector<sim::StreamReport> streams = self.fabric->streams();
  const py::dtype columns(std::move(names), std::move(formats), std::move(offsets), sizeof(sim::StreamReport));
  return py::array(columns, static_cast<py::ssize_t>(streams.size()), streams.data());
}

void bind_run(py::module_& module) {
  py::class_<BoundFabric>(module, "Fabric", "A simulation that runs a FabricPlan.")
      .def(py::init<std::shared_ptr<BoundFabricPlan>>(), "ValueError if the plan is invalid.", py::arg("plan"))
      .def(
          "run", [](BoundFabric& self, i64 hops) { return self.fabric->run(hops); },
          "Runs for about this many packet-hops; False if the run is over.", py::arg("hops"),
          py::call_guard<Unlocked>())
      .def_property_readonly("totals", [](BoundFabric& self) { return self.fabric->totals(); })
      .def_property_readonly("violation", [](BoundFabric& self) { return self.fabric->violation(); })
      .def_property_readonly("policy_failure", [](BoundFabric& self) { return self.fabric->policy_failure(); })
      .def(
          "transfers", [](BoundFabric& self) { return array_of(self.fabric->transfers()); },
          "Times when each transfer was ready, posted, received, and acknowledged; -1: not yet. A row per transfer.")
      .def("streams", &streams_of, "A row per connection: from, to, all flow counters; sorted by from, to, stream.")
      .def(
          "ports", [](BoundFabric& self) { return array_of(self.fabric->ports()); },
          "Counters and queues of each host and switch port, in the plan's order.")
      .def(
          "buffer_bytes_max", [](BoundFabric& self) { return array_of(self.fabric->buffer_bytes_max()); },
          "The most bytes of each switch's shared buffer that were in use; empty if none is shared.")
      .def(
          "copies_max", [](BoundFabric& self) { return array_of(self.fabric->copies_max()); },
          "How often each connection's most resent segment was resent, in the order of streams(); -1: not checked.")
      .def_property_readonly(
          "recording",
          [](BoundFabric& self) {
            const std::vector<std::byte>& bytes = self.fabric->recording();
            return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          },
          "The recorded decisions of policies, as bytes of a recording; empty if recording_bytes_max is 0.")
      .def("samples", &samples_of, "Queues of sampled ports and windows of sampled streams, a row per sampling time.")
      .def(
          "traced_transfers", [](BoundFabric& self) { return array_of(self.fabric->traced_transfers()); },
          "How each transfer crossed the network. Empty without `trace_ns`, like traced_paths() and traced_events().")
      .def(
          "traced_paths", [](BoundFabric& self) { return array_of(self.fabric->traced_paths()); },
          "Usability, RTT and sums of bytes and segments of each path over time; sorted by host, then time.")
      .def(
          "traced_events", [](BoundFabric& self) { return array_of(self.fabric->traced_events()); },
          "Trace events of paths, flows and peers, sorted by host, then time.")
      .def(
          "routes",
          [](BoundFabric& self, const Ends& ends) { return routes_of(self.fabric->net(), self.plan->hosts, ends); },
          "The network ports of each path at the start of the run: a row of eight, filled up with -1.", py::arg("ends"))
      .def_static(
          "event_name", [](u32 kind) { return sim::event_name(kind); },
          "The name of a trace event's `kind`; None: there is no such event.", py::arg("kind"));
}

}  // namespace

void bind_fabric(py::module_& module) {
  PYBIND11_NUMPY_DTYPE(sim::PortPlan, from, to, bytes_per_s, delay_ns, queue_bytes_max, mark_from_bytes,
                       mark_full_bytes, loss, bit_error_rate, reorder, reorder_ns_max, burst_bytes);
  PYBIND11_NUMPY_DTYPE(sim::PortChange, at_ns, port, up, bytes_per_s, loss);
  PYBIND11_NUMPY_DTYPE(sim::PathChoice, at_ns, from, to, path, takes);
  PYBIND11_NUMPY_DTYPE(sim::TransferPlan, from, to, bytes, start_ns, stream, job);
  PYBIND11_NUMPY_DTYPE(sim::DependencyPlan, before, after, delay_ns);
  PYBIND11_NUMPY_DTYPE(sim::TransferReport, ready_ns, posted_ns, received_ns, sent_ns);
  PYBIND11_NUMPY_DTYPE(sim::TransferTrace, first_ns, last_ns, segments, resent, by_path);
  PYBIND11_NUMPY_DTYPE(sim::PathTrace, at_ns, rtt_ns, bytes_sent, segments_sent, segments_lost, host, peer, path,
                       usable);
  PYBIND11_NUMPY_DTYPE(sim::EventTrace, at_ns, value, host, peer, stream, path, kind, status);
  PYBIND11_NUMPY_DTYPE(sim::PortReport, from, to, packets, bytes, data_packets, marked, trimmed, dropped, lost, pauses,
                       busy_ns, queue_bytes_p50, queue_bytes_p95, queue_bytes_p99, queue_bytes_max);
  module.attr("PORT_PLAN") = py::dtype::of<sim::PortPlan>();
  module.attr("PORT_CHANGE") = py::dtype::of<sim::PortChange>();
  module.attr("PATH_CHOICE") = py::dtype::of<sim::PathChoice>();
  module.attr("TRANSFER_PLAN") = py::dtype::of<sim::TransferPlan>();
  module.attr("DEPENDENCY_PLAN") = py::dtype::of<sim::DependencyPlan>();
  bind_fabric_plan(module);
  bind_totals(module);
  bind_run(module);
}

}  // namespace weft::bind
