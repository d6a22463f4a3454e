// Reads the ports of a plan file. docs/PLANNING.md describes the format, transport/plan/planfile.py writes it.
#include "native/datapath/udp/port_plan.h"

#include "native/datapath/json_cursor.h"
#include "native/files/trusted_file.h"

namespace weft::datapath {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::size_t kFileBytesMax = 256u << 20;

struct Row {
  std::string from, to;
  std::vector<PortPair> ports;
};

bool read_pair(JsonCursor* json, PortPair* out) {
  std::int64_t numbers[2] = {};
  std::size_t count = 0;
  const bool read = json->array([&] { return count < 2 && json->integer(&numbers[count++]); });
  if (!read || count != 2) return false;
  for (const std::int64_t number : numbers) {
    if (number < 1 || number > 65'535) return false;
  }
  *out = {static_cast<std::uint16_t>(numbers[0]), static_cast<std::uint16_t>(numbers[1])};
  return true;
}

bool read_row(JsonCursor* json, Row* row) {
  return json->object([&](const std::string& key) {
    if (key == "from_address") return json->string(&row->from);
    if (key == "to_address") return json->string(&row->to);
    if (key != "ports") return json->skip();
    return json->array([&] {
      row->ports.emplace_back();
      return read_pair(json, &row->ports.back());
    });
  });
}

}  // namespace

bool PortPlan::read(const std::string& file, std::string* error) {
  pairs_.clear();
  std::string text;
  return files::read_trusted(file, files::Readers::anyone, kFileBytesMax, &text, error) && parse(text, error);
}

bool PortPlan::parse(const std::string& text, std::string* error) {
  pairs_.clear();
  std::int64_t version = 0;
  JsonCursor json(text);
  const bool whole = json.object([&](const std::string& key) {
    if (key == "weft_plan") return json.integer(&version);
    if (key != "jobs") return json.skip();
    return json.object([&](const std::string&) {
      return json.array([&] {
        Row row;
        if (!read_row(&json, &row)) return false;
        std::vector<PortPair>& all = pairs_[{row.from, row.to}];
        all.insert(all.end(), row.ports.begin(), row.ports.end());
        return true;
      });
    });
  });
  if (whole && json.at_end() && version == kVersion) return true;
  pairs_.clear();
  *error = version != 0 && version != kVersion ? "the file has plan version " + std::to_string(version) +
                                                     ", and this weft reads " + std::to_string(kVersion)
                                               : "the file is no plan, or is cut off: make it with weft plan assign";
  return false;
}

const std::vector<PortPair>& PortPlan::pairs(const std::string& from, const std::string& to) const {
  static const std::vector<PortPair> none;
  const auto found = pairs_.find({from, to});
  return found == pairs_.end() ? none : found->second;
}

}  // namespace weft::datapath
