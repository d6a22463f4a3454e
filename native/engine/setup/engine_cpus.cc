// Affinity masks of engine threads, from lists of CPUs and from sysfs.
#include "native/engine/setup/engine_cpus.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

namespace weft::engine {
namespace {

// Parses "3" or "0-3"; false if it is neither, or names a CPU that a mask cannot hold.
bool parse_range(const std::string& text, int* first, int* last) {
  if (text.find("--") != std::string::npos || text.front() == '-') return false;  // no negative numbers
  const char* const end = text.data() + text.size();
  auto [rest, problem] = std::from_chars(text.data(), end, *first);
  *last = *first;
  if (problem == std::errc() && rest != end && *rest == '-') {
    const auto second = std::from_chars(rest + 1, end, *last);
    rest = second.ptr;
    problem = second.ec;
  }
  return problem == std::errc() && rest == end && 0 <= *first && *first <= *last && *last < CPU_SETSIZE;
}

Cpus common(const Cpus& a, const Cpus& b) {
  Cpus both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

std::string text_of(const Cpus& cpus) {
  std::string text;
  for (std::size_t i = 0, next; i < cpus.size(); i = next) {
    for (next = i + 1; next < cpus.size() && cpus[next] == cpus[next - 1] + 1;) ++next;
    if (i != 0) text += ',';
    text += std::to_string(cpus[i]);
    if (next - i > 1) text.append("-").append(std::to_string(cpus[next - 1]));
  }
  return text;
}

}  // namespace

bool parse_cpus(const std::string& text, Cpus* out, std::string* error) {
  out->clear();
  std::istringstream parts(text + (text.empty() || text.back() != ',' ? "" : ","));  // getline drops an empty last part
  for (std::string part; std::getline(parts, part, ',');) {
    part.erase(0, part.find_first_not_of(' '));  // trims the ends only: "0 1" is no CPU number
    part.erase(part.find_last_not_of(' ') + 1);
    int first = 0, last = 0;
    if (part.empty() || !parse_range(part, &first, &last)) {
      *error =
          "'" + part + "' is no CPU number below " + std::to_string(CPU_SETSIZE) + " and no rising range such as 0-3";
      return false;
    }
    for (int cpu = first; cpu <= last; ++cpu) out->push_back(cpu);
  }
  std::sort(out->begin(), out->end());
  out->erase(std::unique(out->begin(), out->end()), out->end());
  if (out->empty()) *error = "it names no CPU";
  return !out->empty();
}

std::int64_t engines_for(std::int64_t cores, const Cpus& cpus) {
  const std::int64_t most = cpus.empty() ? kEnginesAutoMax : static_cast<std::int64_t>(cpus.size());
  return std::clamp<std::int64_t>(cores / 4, 1, std::min(kEnginesAutoMax, most));
}

Cpus allowed_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  Cpus allowed;
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return allowed;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) allowed.push_back(cpu);
  }
  return allowed;
}

Cpus near_cpus(const Cpus& allowed, const std::vector<std::string>& pci_paths, std::size_t least) {
  Cpus near;
  for (const std::string& path : pci_paths) {
    std::ifstream file(path + "/local_cpulist");
    std::string line, unused;
    Cpus local;
    if (path.empty() || !std::getline(file, line) || !parse_cpus(line, &local, &unused)) return allowed;
    near.insert(near.end(), local.begin(), local.end());
  }
  std::sort(near.begin(), near.end());
  near.erase(std::unique(near.begin(), near.end()), near.end());
  const Cpus both = common(allowed, near);
  return both.size() < std::max<std::size_t>(least, 1) ? allowed : both;
}

bool parse_wish(const std::string& wish, Cpus* out, std::string* error) {
  out->clear();
  if (wish == "any" || wish == "auto" || parse_cpus(wish, out, error)) return true;
  *error = "WEFT_ENGINE_CPUS=" + wish + ": " + *error + "; it is auto, any, or a list of CPUs such as 0-3,8";
  return false;
}

bool choose_cpus(const std::string& wish, const std::vector<std::string>& pci_paths, std::size_t engines, Cpus* out,
                 std::string* error) {
  const Cpus allowed = allowed_cpus();
  out->clear();
  if (wish == "any") return true;
  if (wish == "auto") {
    *out = near_cpus(allowed, pci_paths, engines);
    if (*out == allowed) out->clear();
    return true;
  }
  Cpus listed;
  if (!parse_wish(wish, &listed, error)) return false;
  *out = allowed.empty() ? listed : common(allowed, listed);
  if (!out->empty()) return true;
  *error = "WEFT_ENGINE_CPUS=" + wish + ": the calling thread may use none of these CPUs, only " + text_of(allowed);
  return false;
}

}  // namespace weft::engine
