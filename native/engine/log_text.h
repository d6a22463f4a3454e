// Texts of log lines: times, and peers and their paths by address.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace weft::engine {

inline std::string seconds_text(std::int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(ns) / 1e9);
  return text;
}

class PeerNames {
 public:
  // Path i of `peer` leads to addresses[i % addresses.size()].
  void name(std::uint32_t peer, std::vector<std::string> addresses) { addresses_[peer] = std::move(addresses); }
  void forget(std::uint32_t peer) noexcept { addresses_.erase(peer); }

  // "peer 10.0.0.2", or "peer 7" if it has no name.
  std::string peer_text(std::uint32_t peer) const {
    const std::vector<std::string>* const known = find(peer);
    return known == nullptr ? "peer " + std::to_string(peer) : "peer " + known->front();
  }
  // Index of the address to which the path leads; paths to the same address have the same index.
  std::size_t address_index(std::uint32_t peer, std::uint8_t path) const noexcept {
    const std::vector<std::string>* const known = find(peer);
    if (known == nullptr) return 0;
    // A peer may list an address twice: returns the first index.
    return static_cast<std::size_t>(std::find(known->begin(), known->end(), (*known)[path % known->size()]) -
                                    known->begin());
  }
  // The address to which the path leads: "10.0.1.2", or "peer 7".
  std::string address_text(std::uint32_t peer, std::uint8_t path) const {
    const std::vector<std::string>* const known = find(peer);
    return known == nullptr ? "peer " + std::to_string(peer) : (*known)[path % known->size()];
  }
  // "path 3 to 10.0.1.2"
  std::string path_text(std::uint32_t peer, std::uint8_t path) const {
    return "path " + std::to_string(path) + " to " + address_text(peer, path);
  }

 private:
  const std::vector<std::string>* find(std::uint32_t peer) const noexcept {
    const auto place = addresses_.find(peer);
    return place == addresses_.end() || place->second.empty() ? nullptr : &place->second;
  }

  std::unordered_map<std::uint32_t, std::vector<std::string>> addresses_;
};

}  // namespace weft::engine
