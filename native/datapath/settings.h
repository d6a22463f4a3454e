// What datapaths may read of the process's settings: knobs by name, so that they need not know the table of knobs.
#pragma once

#include <cstdint>
#include <string>

namespace weft::datapath {

class Settings {
 public:
  // `knob`: a name in docs/KNOBS.md without WEFT_, in lower case, such as "segment_bytes". An exception
  // (std::out_of_range) for a name that is no knob of this type: a mistake in the source.
  virtual std::string text(const char* knob) const = 0;  // of a choice: its word
  virtual std::int64_t number(const char* knob) const = 0;
  virtual double real(const char* knob) const = 0;

 protected:
  ~Settings() = default;
};

}  // namespace weft::datapath
