// Python bindings of the ends of a ping-pong. Their loops run without the GIL.
#include "bench/native/loops/trips_bench.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "native/bind/unlocked.h"

namespace py = pybind11;

namespace weft::bind {
namespace {

using bench::TripEnd;
using Values = std::optional<std::map<std::string, std::string>>;

void check(Status status, const std::string& error = "") {
  if (status != Status::ok) throw std::runtime_error(error.empty() ? status_text(status) : error);
}

// The settings of the environment, changed by `values`.
engine::Knobs changed_knobs(const std::map<std::string, std::string>& values) {
  engine::Knobs knobs;
  std::string error;
  check(engine::load_knobs(&knobs, &error), error);
  for (const auto& [name, text] : values) check(engine::set_knob(&knobs, name, text, &error), error);
  return knobs;
}

// Calls `make(knobs, ...)`, with null for TCP.
template <typename Make>
std::unique_ptr<TripEnd> made(const Values& values, const Make& make) {
  const engine::Knobs knobs = changed_knobs(values.value_or(std::map<std::string, std::string>{}));
  std::unique_ptr<TripEnd> end;
  std::string error;
  Status status = Status::ok;
  {
    const Unlocked others_run;
    status = make(values ? &knobs : nullptr, &end, &error);
  }
  check(status, error);
  return end;
}

}  // namespace

void bind_trips_bench(py::module_& module) {
  py::class_<TripEnd>(module, "TripEnd", "One end of a ping-pong over weft (knobs), or over TCP (None).")
      .def_static(
          "listen", [](const Values& knobs) { return made(knobs, &TripEnd::listen); }, py::arg("knobs"))
      .def_static(
          "dial",
          [](const Values& knobs, const py::bytes& address) {
            const auto text = static_cast<std::string>(address);
            return made(knobs, [&](const engine::Knobs* known, std::unique_ptr<TripEnd>* end, std::string* error) {
              return TripEnd::dial(known, text, end, error);
            });
          },
          py::arg("knobs"), py::arg("address"))
      .def("address", [](const TripEnd& end) { return py::bytes(end.address()); })
      .def("used_network", &TripEnd::used_network)
      .def("accept",
           [](TripEnd& end) {
             Status status = Status::ok;
             {
               const Unlocked others_run;
               status = end.accept();
             }
             check(status);
           })
      .def(
          "echo",
          [](TripEnd& end, std::uint64_t bytes, std::int64_t count) {
            Status status = Status::ok;
            {
              const Unlocked others_run;
              status = end.echo(bytes, count);
            }
            check(status);
          },
          py::arg("bytes"), py::arg("count"))
      .def(
          "exchange",
          [](TripEnd& end, std::uint64_t bytes, std::int64_t count) {
            std::vector<std::int64_t> round_ns;
            std::int64_t wrong = 0;
            Status status = Status::ok;
            {
              const Unlocked others_run;
              status = end.exchange(bytes, count, &round_ns, &wrong);
            }
            check(status);
            return py::make_tuple(round_ns, wrong);
          },
          py::arg("bytes"), py::arg("count"), "(nanoseconds of each exchange, wrong answers).");
}

}  // namespace weft::bind
