// Sends datagrams between two network namespaces in one thread, through a datapath, and measures what each costs. The
// kernel's share is included: over veth it receives within the call that sends.
#pragma once

#include <cstdint>
#include <string>

#include "native/core/status.h"

namespace weft::bench {

struct DatagramEnd {
  int name_space = -1;  // descriptor of a network namespace
  std::string address;
  unsigned interface_index = 0;  // of the interface with the address, in that namespace
};

struct DatagramPlan {
  std::string datapath = "udp";  // or "xdp"
  DatagramEnd from, to;
  std::int64_t datagrams = 0, datagram_bytes = 0;
  std::int64_t train = 1;  // datagrams of a burst; more than one let UDP sockets use GSO
};

struct DatagramResult {
  std::int64_t sent = 0, received = 0;
  std::int64_t bypassed = 0;  // of those received: past the kernel's stack
  std::int64_t stamped = 0;   // of those received: with a time of arrival during the run
  std::int64_t calls = 0;     // system calls that sent
  double cpu_ns = 0;          // processor time of the thread for each datagram received
  double send_ns = 0;         // of it in tx_burst()
};

Status bench_datagrams(const DatagramPlan& plan, DatagramResult* out, std::string* error);

}  // namespace weft::bench
