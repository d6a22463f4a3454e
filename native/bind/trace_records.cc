// Binds the functions that find the records of a trace file and describe them.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "native/bind/unlocked.h"
#include "native/telemetry/trace_layout.h"
#include "native/telemetry/trace_reader.h"
#include "native/wire/crc32c.h"

namespace weft::bind {

namespace py = pybind11;

namespace {

py::tuple trace_records(const py::bytes& file, std::size_t begin) {
  const std::string_view image = file;
  telemetry::TraceRecords found;
  {
    const Unlocked others_run;
    found = telemetry::read_trace_blocks(std::as_bytes(std::span(image)), begin, &wire::crc32c);
  }
  const auto* const offsets = reinterpret_cast<const char*>(found.offsets.data());
  return py::make_tuple(py::bytes(offsets, found.offsets.size() * sizeof(std::uint64_t)), found.dropped, found.damage);
}

}  // namespace

void bind_trace_records(py::module_& module) {
  module.def(
      "trace_records", &trace_records,
      "Offsets of the records of a trace file, as the bytes of 64-bit integers; the number of records that the "
      "traced process dropped; and why reading ended early, or an empty text. `begin`: where the first block begins.",
      py::arg("file"), py::arg("begin"));
  module.def("trace_schema", &telemetry::trace_schema,
             "The description of all trace records, as in a trace file's header.");
}

}  // namespace weft::bind
