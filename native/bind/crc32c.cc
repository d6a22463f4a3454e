// Binds the checksum of packets and trace files.
#include "native/wire/crc32c.h"

#include <pybind11/pybind11.h>

#include <string_view>

namespace weft::bind {

namespace py = pybind11;

void bind_crc32c(py::module_& module) {
  module.def(
      "crc32c",
      [](const py::bytes& data) {
        const std::string_view view = data;
        return wire::crc32c(0, view.data(), view.size());
      },
      "CRC-32C of the bytes (RFC 3720, appendix B.4).", py::arg("data"));
}

}  // namespace weft::bind
