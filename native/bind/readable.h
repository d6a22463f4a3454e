// Text of errors for Python, where names in environment variables may have bytes that are no UTF-8.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace weft::bind {

// The text, with escapes for such bytes.
inline pybind11::object readable(const std::string& text) {
  PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (made == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(made);
}

}  // namespace weft::bind
