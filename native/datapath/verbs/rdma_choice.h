// Chooses which RDMA ports become devices: those that a setting names, or all that other hosts can be reached from.
// Decides from a list of ports and asks the system nothing.
#pragma once

#include <string>
#include <vector>

#include "native/datapath/verbs/rdma_ports.h"

namespace weft::datapath {

// What the user wants. `devices`: the knob rdma_devices. `nccl_devices` (NCCL_IB_HCA) counts if it is empty, and
// `nccl_gid` (NCCL_IB_GID_INDEX; -1: not set) for RoCE ports without a GID in the knob.
struct RdmaWish {
  std::string devices = {}, nccl_devices = {};
  int nccl_gid = -1;
};

struct ChosenPort {
  const RdmaPort* port = nullptr;
  int gid = -1;  // index of the GID; -1: the preferred one
};

struct RdmaChoice {
  std::vector<std::vector<ChosenPort>> devices;  // each has one port, or several that '+' joins
  bool named = false;                            // by the knob rdma_devices: each port must be usable
};

// Why a port is not used unless a setting names it; empty: it is used.
std::string why_left_out(const RdmaPort& port);

// `all` must outlive the choice. On failure returns false; `error` says which setting names what is not there, and what
// there is.
bool choose_rdma_ports(const std::vector<RdmaPort>& all, const RdmaWish& wish, RdmaChoice* out, std::string* error);

}  // namespace weft::datapath
