// Reads the weights of paths and passes them to the engines, from a thread of its own: no engine touches a file.
#include "native/message/path_weights.h"

#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <new>
#include <system_error>
#include <utility>

#include "native/datapath/json_cursor.h"
#include "native/engine/log.h"
#include "native/engine/signals_blocked.h"
#include "native/files/trusted_file.h"

namespace weft::message {
namespace {

constexpr auto kPace = std::chrono::milliseconds(50);
constexpr std::int64_t kVersion = 2;
constexpr std::size_t kFileBytesMax = 64u << 20;
constexpr double kUnit = 10'000;  // weights are passed on in steps of 1 / kUnit

bool read_row(datapath::JsonCursor* json, std::vector<double>* row) {
  return json->array([&] {
    double weight = 0;
    if (!json->decimal(&weight) || weight > 1) return false;
    row->push_back(weight);
    return true;
  });
}

// The peers of one runtime: address -> engine -> weights.
bool read_peers(datapath::JsonCursor* json, PeerWeights* out) {
  return json->object([&](const std::string& address) {
    return json->object([&](const std::string& name) {
      std::int64_t engine = 0;
      const auto [end, problem] = std::from_chars(name.data(), name.data() + name.size(), engine);
      if (problem != std::errc() || end != name.data() + name.size()) return false;
      return read_row(json, &(*out)[address][engine]);
    });
  });
}

// The policy parameters that set the weights, as text for PolicyBoard::change().
std::string params_of(const std::vector<double>& weights) {
  std::string text = "weight=";
  char number[32];
  for (const double weight : weights) {
    if (text.back() != '=') text += '/';
    std::snprintf(number, sizeof number, "%lld", std::llround(weight * kUnit));
    text += number;
  }
  return text;
}

}  // namespace

bool read_weights(const std::string& file, const std::string& page, PeerWeights* out, std::string* error) {
  out->clear();
  std::string text;
  return files::read_trusted(file, files::Readers::anyone, kFileBytesMax, &text, error) &&
         parse_weights(text, page, out, error);
}

bool parse_weights(const std::string& text, const std::string& page, PeerWeights* out, std::string* error) {
  out->clear();
  std::int64_t version = 0;
  datapath::JsonCursor json(text);
  const bool whole = json.object([&](const std::string& key) {
    if (key == "weft_weights") return json.integer(&version);
    if (key != "pages") return json.skip();
    return json.object([&](const std::string& id) { return id == page ? read_peers(&json, out) : json.skip(); });
  });
  if (whole && json.at_end() && version == kVersion) return true;
  out->clear();
  *error = version != 0 && version != kVersion
               ? "the file has version " + std::to_string(version) + ", and this weft reads " + std::to_string(kVersion)
               : "it is no file of weights: give one that weft plan watch writes";
  return false;
}

Status PathWeights::start() noexcept {
  const engine::SignalsBlocked blocked;
  Status status = Status::ok;
  try {
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "weft-weights");
  } catch (const std::system_error&) {
    status = Status::system_error;
  }
  return status;
}

void PathWeights::stop() noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void PathWeights::add(const std::shared_ptr<engine::ConnectionCore>& connection) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto gone = [](const std::weak_ptr<engine::ConnectionCore>& one) { return one.expired(); };
  connections_.erase(std::remove_if(connections_.begin(), connections_.end(), gone), connections_.end());
  connections_.push_back(connection);
  ++added_;
}

void PathWeights::run() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    try {
      step();
    } catch (const std::bad_alloc&) {  // out of memory: the paths keep their weights
    }
    lock.lock();
    wake_.wait_for(lock, kPace, [this] { return stopping_; });
  }
}

void PathWeights::step() {
  if (!changed()) return;
  PeerWeights weights;
  std::string problem;
  if (read_weights(file_, page_, &weights, &problem)) {
    apply(weights);
  } else {
    warn("the weights " + file_ + " are not used: " + problem + " (WEFT_WEIGHTS)");
  }
}

// Whether the file of weights was written, or a connection was opened, since the last call.
bool PathWeights::changed() {
  struct stat found{};
  if (::stat(file_.c_str(), &found) != 0) return false;  // weft plan watch has not written it yet
  const std::int64_t written_ns = found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (written_ns == written_ns_ && found.st_ino == inode_ && added_ == known_) return false;
  written_ns_ = written_ns;
  inode_ = found.st_ino;
  known_ = added_;
  return true;
}

void PathWeights::apply(const PeerWeights& weights) {
  std::vector<std::shared_ptr<engine::ConnectionCore>> open;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& one : connections_) {
      if (auto found = one.lock(); found != nullptr) open.push_back(std::move(found));
    }
  }
  for (const auto& connection : open) {
    const std::string peer = connection->peer_address();
    const auto found = weights.find(peer.substr(0, peer.find(" port ")));
    if (found != weights.end() && connection->health() == Status::ok) apply(connection.get(), found->second);
  }
}

void PathWeights::apply(engine::ConnectionCore* connection,
                        const std::map<std::int64_t, std::vector<double>>& by_engine) {
  for (const auto& [engine, weights] : by_engine) {
    const std::vector<engine::FlowRef> flows = connection->flows_on(engine);
    std::string problem;
    if (flows.empty() || board_->change("path", params_of(weights), engine::PolicyChange::params, &flows,
                                        connection->id(), &problem) == Status::ok) {
      continue;
    }
    warn("the weights " + file_ + " are not used: " + problem + "; weights need WEFT_PATH_POLICY=weighted");
  }
}

// Logs a problem, unless it is the same as the last one.
void PathWeights::warn(const std::string& text) {
  if (text == warned_) return;
  warned_ = text;
  engine::log(engine::LogLevel::warn, text);
}

}  // namespace weft::message
