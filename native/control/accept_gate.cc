// Delays further accepts after accept() failed, and keeps one file descriptor in reserve, so that a peer can be told
// why it is refused. All times are on the clock of now_ns().
#include "native/control/accept_gate.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace weft::control {
namespace {

constexpr std::int64_t kPauseNs = 100'000'000;
// Peers are refused only after accepting has failed for this long; during a shorter shortage they wait in the backlog.
constexpr std::int64_t kShortageNs = 1'000'000'000;

}  // namespace

void AcceptGate::on_failed(std::int64_t now_ns, Status status, const std::string& text) {
  if (failing_since_ns_ == 0) failing_since_ns_ = now_ns;
  status_ = status;
  failed_ns_ = now_ns;
  text_ = text;
}

void AcceptGate::on_accepted() noexcept {
  failing_since_ns_ = 0;
  status_ = Status::ok;
  text_.clear();
}

bool AcceptGate::turns_away(std::int64_t now_ns) const noexcept {
  return failing_since_ns_ != 0 && now_ns - failing_since_ns_ >= kShortageNs;
}

Status AcceptGate::problem(std::int64_t now_ns, std::int64_t within_ns, std::string* text) const {
  if (status_ == Status::ok || now_ns - failed_ns_ > within_ns) return Status::ok;
  *text = text_;
  return status_;
}

bool AcceptGate::pause(std::int64_t now_ns) noexcept {
  if (is_paused()) return false;
  again_ns_ = now_ns + kPauseNs;
  return true;
}

bool AcceptGate::resume_due(std::int64_t now_ns) noexcept {
  if (!is_paused() || now_ns < again_ns_) return false;
  again_ns_ = 0;
  return true;
}

void AcceptGate::open_spare() noexcept {
  if (spare_ < 0) spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

bool AcceptGate::take_spare() noexcept {
  if (spare_ < 0) return false;
  ::close(std::exchange(spare_, -1));
  return true;
}

void AcceptGate::close() noexcept {
  if (spare_ >= 0) ::close(std::exchange(spare_, -1));
}

}  // namespace weft::control
