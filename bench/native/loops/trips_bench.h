// One end of a ping-pong between two processes of one host, over weft or TCP. Both ends poll, and no interpreter runs
// between two messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/core/status.h"
#include "native/engine/knobs.h"

namespace weft::bench {

class TripEnd {
 public:
  virtual ~TripEnd() = default;
  // `knobs`: those of weft; null: TCP over loopback. On failure `error` says what to do.
  static Status listen(const engine::Knobs* knobs, std::unique_ptr<TripEnd>* out, std::string* error);
  static Status dial(const engine::Knobs* knobs, const std::string& address, std::unique_ptr<TripEnd>* out,
                     std::string* error);
  // Of a listening end: bytes that the other end dials.
  virtual std::string address() const = 0;
  virtual Status accept() = 0;
  // Whether segments of the network carried messages of weft.
  virtual bool used_network() const = 0;

  // Sends each of `count` messages back.
  Status echo(std::uint64_t bytes, std::int64_t count);
  // Sends `count` messages and awaits their answers. `round_ns`: how long each exchange took; `wrong`: answers that
  // differ from what was sent. Messages of two contents take turns, so that an old answer is wrong.
  Status exchange(std::uint64_t bytes, std::int64_t count, std::vector<std::int64_t>* round_ns, std::int64_t* wrong);

 protected:
  // Sends `out` and receives `in`, in this order; either may be null.
  virtual Status move(const std::uint8_t* out, std::uint8_t* in, std::uint64_t bytes) = 0;
};

}  // namespace weft::bench
