// The extension module _rig of tests: the rig (two endpoints in virtual time), fault schedules, runs as a whole or step
// by step, and reports.
#include "tests/native/rig/rig.h"

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

// Policies to choose from. The libraries are kept because the choices point into their memory.
struct Menu {
  sim::PolicyMenu menu;
  Libraries libraries;
};

struct BoundSchedule : sim::Schedule {
  Libraries libraries;
};

// Raises ValueError for a schedule that exceeds the limits of the rig or of the protocol stacks.
const BoundSchedule& checked(const BoundSchedule& schedule) {
  const bool fits = schedule.paths >= 1 && schedule.paths <= core::kMaxPaths && schedule.stripes >= 1 &&
                    schedule.stripes <= 16 && schedule.segment_bytes >= 128 && schedule.segment_bytes <= 9000 &&
                    schedule.port_buffer_bytes > 0 && schedule.faults.reorder_ns_max > 0 &&
                    schedule.faults.replay_ns_max > 0 && schedule.eager_bytes <= core::kMessageBytesMax;
  if (!fits) throw py::value_error("the schedule's paths, stripes, segment, buffer or delays are out of range");
  return schedule;  // NOLINT(bugprone-return-const-ref-from-parameter)
}

struct BoundRig {
  explicit BoundRig(const BoundSchedule& schedule) : libraries(schedule.libraries), rig(checked(schedule)) {}
  Libraries libraries;
  sim::Rig rig;
};

void bind_counters(py::module_& module) {
  py::class_<sim::LinkCounters>(module, "LinkCounters", "Counts of datagrams on the link.")
      .def_readonly("sent", &sim::LinkCounters::sent)
      .def_readonly("delivered", &sim::LinkCounters::delivered)
      .def_readonly("lost", &sim::LinkCounters::lost)
      .def_readonly("lost_data", &sim::LinkCounters::lost_data)
      .def_readonly("reordered", &sim::LinkCounters::reordered)
      .def_readonly("duplicated", &sim::LinkCounters::duplicated)
      .def_readonly("corrupted", &sim::LinkCounters::corrupted)
      .def_readonly("marked", &sim::LinkCounters::marked)
      .def_readonly("replayed", &sim::LinkCounters::replayed)
      .def_readonly("strays", &sim::LinkCounters::strays)
      .def_readonly("outage_drops", &sim::LinkCounters::outage_drops)
      .def_readonly("too_long", &sim::LinkCounters::too_long);
}

void bind_faults(py::module_& module) {
  py::class_<sim::LinkFaults>(module, "LinkFaults", "Probabilities per datagram; times in virtual nanoseconds.")
      .def(py::init<>())
      .def_readwrite("loss", &sim::LinkFaults::loss)
      .def_readwrite("reorder", &sim::LinkFaults::reorder)
      .def_readwrite("duplicate", &sim::LinkFaults::duplicate)
      .def_readwrite("corrupt", &sim::LinkFaults::corrupt)
      .def_readwrite("mark", &sim::LinkFaults::mark)
      .def_readwrite("replay", &sim::LinkFaults::replay)
      .def_readwrite("stray", &sim::LinkFaults::stray)
      .def_readwrite("delay_ns", &sim::LinkFaults::delay_ns)
      .def_readwrite("jitter_ns", &sim::LinkFaults::jitter_ns)
      .def_readwrite("reorder_ns_max", &sim::LinkFaults::reorder_ns_max)
      .def_readwrite("replay_ns_max", &sim::LinkFaults::replay_ns_max)
      .def_readwrite("bytes_per_s", &sim::LinkFaults::bytes_per_s);
  py::class_<sim::PathOutage>(module, "PathOutage", "A path that loses everything for a while.")
      .def(py::init<sim::u8, sim::i64, sim::i64>(), py::kw_only(), py::arg("path"), py::arg("from_ns"),
           py::arg("until_ns"))
      .def_readwrite("path", &sim::PathOutage::path)
      .def_readwrite("from_ns", &sim::PathOutage::from_ns)
      .def_readwrite("until_ns", &sim::PathOutage::until_ns);
  py::class_<sim::SizeLimit>(module, "SizeLimit", "A path that loses longer datagrams for a while.")
      .def(py::init<sim::u8, int, sim::u32, sim::i64, sim::i64>(), py::kw_only(), py::arg("path"),
           py::arg("sender") = -1, py::arg("bytes_max"), py::arg("from_ns") = 0, py::arg("until_ns"))
      .def_readwrite("path", &sim::SizeLimit::path)
      .def_readwrite("sender", &sim::SizeLimit::from)
      .def_readwrite("bytes_max", &sim::SizeLimit::bytes_max)
      .def_readwrite("from_ns", &sim::SizeLimit::from_ns)
      .def_readwrite("until_ns", &sim::SizeLimit::until_ns);
}

void bind_schedule(py::module_& module) {
  py::class_<Menu>(module, "PolicyMenu",
                   "The policies that generated schedules choose from; `fixed` if there are none.")
      .def(py::init<>())
      .def(
          "add",
          [](Menu& self, const std::string& family, const std::string& name,
             const std::vector<std::string>& directories) {
            const policy::Family which = family_of(family);
            const core::PolicyChoice choice = find_policy(which, name, directories, &self.libraries);
            place_of(self.menu, which).push_back(choice);
          },
          py::arg("family"), py::arg("name"), py::arg("directories"));
  py::class_<BoundSchedule>(module, "Schedule", "A run of the rig: traffic, faults, limits and policies.")
      .def(py::init<>())
      .def_readwrite("seed", &BoundSchedule::seed)
      .def_readwrite("paths", &BoundSchedule::paths)
      .def_readwrite("segment_bytes", &BoundSchedule::segment_bytes)
      .def_readwrite("stripes", &BoundSchedule::stripes)
      .def_readwrite("messages", &BoundSchedule::messages)
      .def_readwrite("message_bytes_max", &BoundSchedule::message_bytes_max)
      .def_readwrite("zero_fraction", &BoundSchedule::zero_fraction)
      .def_readwrite("small_fraction", &BoundSchedule::small_fraction)
      .def_readwrite("both_ways", &BoundSchedule::both_ways)
      .def_readwrite("send_too_long", &BoundSchedule::send_too_long)
      .def_readwrite("windows", &BoundSchedule::windows)
      .def_readwrite("windows_outlive", &BoundSchedule::windows_outlive)
      .def_readwrite("late_reads", &BoundSchedule::late_reads)
      .def_readwrite("open_bytes", &BoundSchedule::open_bytes)
      .def_readwrite("staged_sends", &BoundSchedule::staged_sends)
      .def_readwrite("staged_receives", &BoundSchedule::staged_receives)
      .def_readwrite("post_gap_ns_max", &BoundSchedule::post_gap_ns_max)
      .def_readwrite("close_at_ns", &BoundSchedule::close_at_ns)
      .def_readwrite("dies_at_ns", &BoundSchedule::dies_at_ns)
      .def_readwrite("limit_ns", &BoundSchedule::limit_ns)
      .def_readwrite("eager_bytes", &BoundSchedule::eager_bytes)
      .def_readwrite("eager_slots", &BoundSchedule::eager_slots)
      .def_readwrite("window_bytes_max", &BoundSchedule::window_bytes_max)
      .def_readwrite("peer_silence_ns", &BoundSchedule::peer_silence_ns)
      .def_readwrite("rto_ns_max", &BoundSchedule::rto_ns_max)
      .def_readwrite("port_buffer_bytes", &BoundSchedule::port_buffer_bytes)
      .def_readwrite("faults", &BoundSchedule::faults)
      .def_readwrite("outages", &BoundSchedule::outages)
      .def_readwrite("search_size", &BoundSchedule::search_size)
      .def_readwrite("limits", &BoundSchedule::limits)
      .def_property_readonly("fault_kinds", [](const BoundSchedule& self) { return sim::fault_kinds(self); })
      .def_property_readonly("hash", [](const BoundSchedule& self) { return sim::schedule_hash(self); })
      .def(
          "choose",
          [](BoundSchedule& self, const std::string& family, const std::string& name,
             const std::vector<std::string>& directories) {
            const policy::Family which = family_of(family);
            place_of(self, which) = find_policy(which, name, directories, &self.libraries);
          },
          "Sets one policy by its name or path; ValueError if there is none.", py::arg("family"), py::arg("name"),
          py::arg("directories"));
}

py::int_ plain(std::int64_t value) { return py::int_(value); }
py::tuple plain(const telemetry::Histogram<std::int64_t>& histogram) {
  py::tuple made(telemetry::kHistogramBuckets);
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = histogram.buckets[i];
  return made;
}

// Counters as a types.SimpleNamespace: the classes of transport._native are of another compiler's runtime.
#define WEFT_ADD_COUNTER(name, unit, kind, sentence) made.attr(#name) = plain(counters.name);
py::object plain(const core::FlowCounters& counters) {
  py::object made = py::module_::import("types").attr("SimpleNamespace")();
  WEFT_FLOW_COUNTER_TABLE(WEFT_ADD_COUNTER)
  return made;
}
py::object plain(const telemetry::EngineCounters& counters) {
  py::object made = py::module_::import("types").attr("SimpleNamespace")();
  WEFT_ENGINE_COUNTER_TABLE(WEFT_ADD_COUNTER)
  return made;
}
#undef WEFT_ADD_COUNTER

void bind_run(py::module_& module) {
  py::class_<sim::RunReport>(module, "RunReport", "Results of a run; `violation` is empty if every invariant held.")
      .def_readonly("violation", &sim::RunReport::violation)
      .def_readonly("hung", &sim::RunReport::hung)
      .def_readonly("early_bytes", &sim::RunReport::early_bytes)
      .def_readonly("fingerprint", &sim::RunReport::fingerprint)
      .def_readonly("size_changes", &sim::RunReport::size_changes)
      .def_property_readonly("segment_bytes_last",
                             [](const sim::RunReport& self) {
                               return std::vector<sim::i64>(self.segment_bytes_last, self.segment_bytes_last + 2);
                             })
      .def_readonly("ended_ns", &sim::RunReport::ended_ns)
      .def_readonly("completed", &sim::RunReport::completed)
      .def_readonly("failed", &sim::RunReport::failed)
      .def_readonly("corrupt_messages", &sim::RunReport::corrupt_messages)
      .def_readonly("writes", &sim::RunReport::writes)
      .def_readonly("writes_refused", &sim::RunReport::writes_refused)
      .def_readonly("policies_failed", &sim::RunReport::policies_failed)
      .def_readonly("storage_bytes_max", &sim::RunReport::storage_bytes_max)
      .def_readonly("path_bytes", &sim::RunReport::path_bytes)
      .def_readonly("link", &sim::RunReport::link)
      .def_property_readonly(
          "counters",
          [](const sim::RunReport& self) { return py::make_tuple(plain(self.counters[0]), plain(self.counters[1])); })
      .def_property_readonly("stack", [](const sim::RunReport& self) {
        return py::make_tuple(plain(self.stack[0]), plain(self.stack[1]));
      });
  py::class_<BoundRig>(module, "Rig", "Two stacks, one virtual clock, one lossy link; steppable.")
      .def(py::init<const BoundSchedule&>(), py::arg("schedule"))
      .def(
          "step", [](BoundRig& self) { return self.rig.step(); },
          "Handles the next event. False if there are none left.")
      .def(
          "run", [](BoundRig& self) { return self.rig.run(); }, py::call_guard<Unlocked>(),
          "Runs to the end, with the final checks.")
      .def("report", [](BoundRig& self) { return self.rig.report(); })
      .def_property_readonly("finished", [](const BoundRig& self) { return self.rig.finished(); })
      .def_property_readonly("violation", [](const BoundRig& self) { return self.rig.violation(); })
      .def_property_readonly("now_ns", [](const BoundRig& self) { return self.rig.now_ns(); })
      .def_property_readonly("outstanding", [](const BoundRig& self) { return self.rig.outstanding(); });
  module.def(
      "draw_schedule",
      [](sim::u64 seed, const Menu& menu) {
        return BoundSchedule{sim::draw_schedule(seed, menu.menu), menu.libraries};
      },
      "The schedule of a seed: the same seed and menu give the same schedule.", py::arg("seed"), py::arg("menu"));
  module.def(
      "run_schedule",
      [](const BoundSchedule& schedule) {
        const sim::Schedule& plain = checked(schedule);
        const Unlocked others_run;
        return sim::run_schedule(plain);
      },
      "Runs a schedule to its end.", py::arg("schedule"));
  module.attr("FAULT_KINDS") = py::make_tuple("loss", "reorder", "duplicate", "corrupt", "delay", "dead_path",
                                              "dead_peer", "replay", "stray", "early_close", "too_long");
}

}  // namespace
}  // namespace weft::bind

PYBIND11_MODULE(_rig, module) {
  weft::bind::bind_counters(module);
  weft::bind::bind_faults(module);
  weft::bind::bind_schedule(module);
  weft::bind::bind_run(module);
}
