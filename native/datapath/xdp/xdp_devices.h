// Tells whether this host and its interfaces can be used through AF_XDP.
#pragma once

#include <cstdint>
#include <string>

#include "native/datapath/udp/interfaces.h"

namespace weft::datapath {

// Whether this process may use AF_XDP here. If not, returns false, and `error` names what is missing and what to do.
bool probe_xdp(std::string* error);

// Why AF_XDP is not used on an interface, as in "lo is loopback: ..."; empty: it is used.
std::string why_not_xdp(const Interface& interface);

// Whether packets may span several chunks of memory (Linux 6.6). `release`: as uname() tells it, such as "6.8.0-45".
bool has_segments(const std::string& release);
bool has_segments();

// The part of an interface's MTU that is used. Without packets of several chunks, a packet must fit one.
std::int64_t usable_mtu_bytes(std::int64_t mtu_bytes, bool segments) noexcept;

// The capabilities that AF_XDP needs and that this mask (CapEff of /proc/self/status) lacks, as in "CAP_NET_RAW and
// CAP_BPF"; empty: none.
std::string missing_capabilities(std::uint64_t effective);

}  // namespace weft::datapath
