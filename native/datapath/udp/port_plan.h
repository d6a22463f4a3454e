// The UDP ports that a plan file (weft plan assign) chose for the paths between two addresses.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weft::datapath {

struct PortPair {
  std::uint16_t here = 0, there = 0;
};

class PortPlan {
 public:
  // Reads the file, if it is trusted (native/files/trusted_file.h). On failure returns false; the plan is then empty,
  // and `error` says in one line what is wrong.
  bool read(const std::string& file, std::string* error);
  // Reads the text of a file; fails as read() does.
  bool parse(const std::string& text, std::string* error);
  bool empty() const noexcept { return pairs_.empty(); }
  // The pairs of ports from one address to another, in the plan's order; empty: the plan has none.
  const std::vector<PortPair>& pairs(const std::string& from, const std::string& to) const;

 private:
  std::map<std::pair<std::string, std::string>, std::vector<PortPair>> pairs_;
};

}  // namespace weft::datapath
