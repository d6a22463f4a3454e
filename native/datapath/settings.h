// The interface through which datapaths read settings: knobs by name, so that datapaths need not know the table of
// knobs.
#pragma once

#include <cstdint>
#include <string>

namespace weft::datapath {

class Settings {
 public:
  // `knob`: a name in docs/KNOBS.md without WEFT_, in lower case, such as "segment_bytes". If there is no knob of this
  // name and type, these functions throw std::out_of_range.
  virtual std::string text(const char* knob) const = 0;  // if the knob is a choice: the name of the chosen value
  virtual std::int64_t number(const char* knob) const = 0;
  virtual double real(const char* knob) const = 0;

 protected:
  ~Settings() = default;
};

}  // namespace weft::datapath
