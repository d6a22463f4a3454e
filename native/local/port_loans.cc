// Messages in memory of devices: the port names them to the peer, and hands those of the peer over to a device.
#include "native/engine/connection.h"
#include "native/local/port.h"

namespace weft::local {
namespace {

constexpr std::uint64_t kFewBytes = 64 * 1024;  // moved at once by a thread of a device

}  // namespace

// Names the memory of a message that the peer's device copies.
void Port::lend_loan(const Posting& post) noexcept {
  const Head head{post.bytes | Head::kLoan, 0};
  out_.write(&head, sizeof head);
  out_.write(&post.lent->loan, sizeof post.lent->loan);
  ++lent_.loans;
  finish_send(post);
  out_.publish();
  wake(kWantsData);
}

// Hands a message that the peer's device lends over to a device of this process.
void Port::begin_loan(Problem* problem) noexcept {
  std::uint64_t waiting = 0;
  if (!in_.waiting(&waiting)) return problem->broken(in_.violation());
  if (!loans_.may_arrive() || waiting < sizeof(engine::Loan)) return problem->broken({"the loan bit of a head", 1});
  engine::Loan loan;
  in_.read(&loan, sizeof loan);
  in_.publish();
  receiving_.open.store(false, std::memory_order_relaxed);
  if (!loans_.take(receiving_.post, receiving_.bytes, loan, weak_from_this().lock()))
    problem->status = Status::out_of_memory;
  wake(kWantsRoom);
}

// Completes receives whose loans a device has copied, in order.
bool Port::end_loans(Problem* problem) noexcept {
  bool moved = false;
  for (PortLoans::Ended ended; problem->ok() && loans_.next_ended(&ended); moved = true) {
    if (ended.status == Status::ok && in_.count_loan()) {
      core_->on_moved(ended.slot, ended.bytes);
      wake(kWantsRoom);
    } else if (in_.has_taken_loans_back() || gone_.load() != Status::ok) {
      loan_lost_ = true;  // the sender ends the connection, or has ended
    } else if (ended.status != Status::ok) {
      problem->status = ended.status;
    } else {
      problem->broken({"the count of copied loans", in_.foreign_loans()});
    }
  }
  return moved;
}

bool Port::on_taken(std::uint64_t turn, Status status) noexcept {
  const bool counts = !in_.has_taken_loans_back() && gone_.load(std::memory_order_seq_cst) == Status::ok;
  loans_.on_taken(turn, status);
  static_cast<void>(run(kFewBytes, Copies::no));
  if (ended_.load(std::memory_order_seq_cst)) return counts;
  hand_over();
  // The connection fails once nothing is left to receive.
  if (gone_.load(std::memory_order_seq_cst) != Status::ok) mover_->kick(this);
  return counts;
}

}  // namespace weft::local
