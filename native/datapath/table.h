// The table of datapaths. To add a datapath, add its name in names.h and an entry in a folder of its own.
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

// The devices that a datapath found, and how the datapath will use them.
struct Found {
  std::vector<DeviceState> devices;
  std::string summary;    // name for logs and users, such as "udp" or "verbs UC"
  std::string warning;    // one line to log when weft starts; empty: none
  std::int32_t mode = 0;  // a value whose meaning only the datapath knows
};

struct MakeRequest {
  const Settings* settings = nullptr;
  const Found* found = nullptr;
  std::uint32_t engine = 0;
  // Number of descriptors of the process that are reserved and not open. The datapath subtracts one for each that it
  // opens.
  std::atomic<std::int64_t>* descriptors = nullptr;
};

struct DatapathEntry {
  const char* name;   // value of the knob `datapath` that selects this datapath
  const char* title;  // name in messages, such as "UDP sockets"
  // With WEFT_DATAPATH=auto, the datapath with the highest preference that works is used. 0: never used automatically.
  int preference;
  // Datagrams take IP routes: the route's MTU limits their size, and switches may silently drop longer ones.
  bool routed;
  // Nothing between the two hosts protects the payload from damage, so the payload checksum is on by default.
  bool unprotected;
  // Each path uses one file descriptor.
  bool descriptor_per_path;
  // Engines hinder each other, so that there is one unless the knob `engines` asks for more.
  bool one_engine;

  // Whether this host has what the datapath needs. If not, returns false, and `error` says in one line what is missing
  // and what to do. Neither this nor `find` opens anything that outlives the call.
  bool (*probe)(const Settings& settings, std::string* error);
  // Finds the devices that the knobs name, for `engines` engines. Called after `probe`; reports errors as `probe` does.
  bool (*find)(const Settings& settings, std::int64_t engines, Found* out, std::string* error);
  std::unique_ptr<Datapath> (*make)(const MakeRequest& request);
  // For a `routed` datapath: the largest datagram on the route to `to`; 0: unknown.
  std::uint32_t (*route_segment_bytes)(const Settings& settings, const SocketAddress& to);
};

// All datapaths, in the order of names.h.
const std::vector<const DatapathEntry*>& datapath_table();

}  // namespace weft::datapath
