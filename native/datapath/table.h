// The table of datapaths. A datapath is one name here and one entry in a folder of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/datapath/device.h"
#include "native/datapath/names.h"
#include "native/datapath/settings.h"

namespace weft::datapath {

// The devices that a datapath found, and how it will use them.
struct Found {
  std::vector<DeviceState> devices;
  std::string summary;    // for the log and for users: "udp", "verbs UC"
  std::string warning;    // one line to log at start; empty: none
  std::int32_t mode = 0;  // of the datapath's own
};

struct MakeRequest {
  const Settings* settings = nullptr;
  const Found* found = nullptr;
  std::uint32_t engine = 0;
  std::atomic<std::int64_t>* descriptors = nullptr;  // promised to paths; each descriptor that opens takes one
};

struct DatapathEntry {
  const char* name;   // the word of the knob `datapath`
  const char* title;  // in messages: "UDP sockets"
  // With WEFT_DATAPATH=auto the highest that works is used; 0: never.
  int preference;
  // Its datagrams follow the routes of IP, whose MTU limits them and whose switches may drop long ones in silence.
  bool routed;
  // Nothing between the two ends protects a payload: the payload's checksum is on by default.
  bool unprotected;
  // Each path takes a file descriptor.
  bool descriptor_per_path;

  // Whether this host has what the datapath needs at all. False: `error` says in one line what is missing and what to
  // do. Opens nothing that outlives the call, and neither does `find`.
  bool (*probe)(const Settings& settings, std::string* error);
  // The devices that the knobs name, for so many engines. Called after `probe`; fails as it does.
  bool (*find)(const Settings& settings, std::int64_t engines, Found* out, std::string* error);
  std::unique_ptr<Datapath> (*make)(const MakeRequest& request);
  // If `routed`: the largest datagram on the route to `to`; 0: unknown.
  std::uint32_t (*route_segment_bytes)(const Settings& settings, const SocketAddress& to);
};

// In the order of names.h.
const std::vector<const DatapathEntry*>& datapath_table();

}  // namespace weft::datapath
