// Follows the file of WEFT_WEIGHTS: sets the weights that `weft plan watch` computes on the paths of open connections.
// docs/PLANNING.md describes the file.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "native/core/status.h"
#include "native/engine/connection.h"
#include "native/engine/policies/policy_board.h"

namespace weft::message {

// Address of a peer -> number of an engine -> weights of its paths to the peer, 0 to 1.
using PeerWeights = std::map<std::string, std::map<std::int64_t, std::vector<double>>>;

// Reads the weights of one runtime; `page`: engine::page_identity() of its telemetry page. False, with one line in
// `error`, if the file is wrong, or is not trusted (native/files/trusted_file.h).
bool read_weights(const std::string& file, const std::string& page, PeerWeights* out, std::string* error);
// Reads the weights of one runtime from the text of a file.
bool parse_weights(const std::string& text, const std::string& page, PeerWeights* out, std::string* error);

class PathWeights {
 public:
  // `page`: engine::page_identity() of the runtime's telemetry page. It identifies the runtime in the file. A pid does
  // not: containers can use equal pids, and several runtimes can be in one process.
  PathWeights(std::string file, std::string page, engine::PolicyBoard* board)
      : file_(std::move(file)), page_(std::move(page)), board_(board) {}
  PathWeights(const PathWeights&) = delete;
  PathWeights& operator=(const PathWeights&) = delete;
  ~PathWeights() { stop(); }

  // Starts the thread that looks at the file 20 times a second. A missing file changes nothing, and an invalid one is
  // logged as a warning.
  Status start() noexcept;
  // Must be called before the engines stop.
  void stop() noexcept;
  // Takes a new connection. Connections are forgotten when their last owner drops them.
  void add(const std::shared_ptr<engine::ConnectionCore>& connection);

 private:
  void run() noexcept;
  void step();
  bool changed();
  void apply(const PeerWeights& weights);
  void apply(engine::ConnectionCore* connection, const std::map<std::int64_t, std::vector<double>>& by_engine);
  void warn(const std::string& text);

  const std::string file_, page_;
  engine::PolicyBoard* const board_;
  std::mutex mutex_;  // protects the members from here to stopping_
  std::condition_variable wake_;
  std::vector<std::weak_ptr<engine::ConnectionCore>> connections_;
  std::uint64_t added_ = 0;
  bool stopping_ = false;

  // Used by the thread only: the file and the connections as of its last check.
  std::int64_t written_ns_ = -1;
  std::uint64_t inode_ = 0, known_ = 0;
  std::string warned_;
  std::thread thread_;
};

}  // namespace weft::message
