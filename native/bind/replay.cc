// Python bindings that replay a recording of policy decisions with policy libraries, and count the differences.
#include "native/sim/replay.h"

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

struct BoundReplay : sim::Replay {
  Libraries libraries;  // of the policies that add() added; run() calls their hooks
};

void add(BoundReplay& replay, const std::string& family, const std::string& name,
         const std::vector<std::string>& directories) {
  replay.add(*find_policy(family_of(family), name, directories, &replay.libraries).descriptor);
}

void run(BoundReplay& replay, const py::buffer& recording) {
  const py::buffer_info image = recording.request();
  const auto bytes = static_cast<std::size_t>(image.size * image.itemsize);
  bool is_recording = false;
  {
    const Unlocked others_run;
    is_recording = replay.run({static_cast<const std::byte*>(image.ptr), bytes});
  }
  if (!is_recording) throw py::value_error("not a recording of policy decisions, or one of another version");
}

}  // namespace

void bind_replay(py::module_& module) {
  using P = sim::ReplayedPolicy;
  py::class_<P>(module, "ReplayedPolicy", "How the repeated decisions of one policy differ from the recorded ones.")
      .def_property_readonly("family", [](const P& self) { return policy::family_name(self.family); })
      .def_readonly("name", &P::name)
      .def_readonly("source_sha256", &P::source_sha256)
      .def_readonly("known", &P::known)
      .def_readonly("decisions", &P::decisions)
      .def_readonly("differ", &P::differ)
      .def_readonly("failed", &P::failed)
      .def_readonly("skipped", &P::skipped)
      .def_readonly("by_hook", &P::by_hook);
  py::class_<BoundReplay>(module, "Replay", "Repeats recorded policy decisions: calls the hooks as a stack does.")
      .def(py::init<>())
      .def("add", &add,
           "Adds a policy that may have made recorded decisions, by its name or path; ValueError if there is none.",
           py::arg("family"), py::arg("name"), py::arg("directories") = std::vector<std::string>{})
      .def("run", &run, "Repeats every decision of a recording; the totals add up over several recordings.",
           py::arg("recording"))
      .def_property_readonly("policies", &BoundReplay::policies)
      .def_property_readonly("lost", &BoundReplay::lost)
      .def_property_readonly("cut", &BoundReplay::cut)
      .def_property_readonly("damage", &BoundReplay::damage)
      .def_property_readonly("first_difference", &BoundReplay::first_difference);
}

}  // namespace weft::bind
