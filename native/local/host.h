// What this process shares with others of its host: a Unix socket at which their processes meet it, to agree on the
// memory of a connection, and the threads that move messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "native/engine/connection.h"
#include "native/engine/knobs.h"
#include "native/engine/log_limit.h"
#include "native/local/crew.h"
#include "native/local/mover.h"
#include "native/local/port.h"

namespace weft::local {

inline constexpr std::size_t kNameBytes = 32, kTokenBytes = 16;

// The knob for whose sake all messages go over the network whatever WEFT_LOCAL says, because it sets how the network is
// used; empty: there is none.
std::string network_knob(const engine::Knobs& knobs);

// Only the control loop calls its functions, but for the constructor, the destructor and step_aside().
class Host {
 public:
  explicit Host(const engine::Knobs& knobs, std::size_t movers);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Opens the socket. False: `error` says why all messages go over the network.
  bool start(std::string* error);
  // Names the socket to the peers of this process; empty: there is none.
  const std::string& name() const noexcept { return name_; }
  // The dialling end: makes the memory of a connection, and hands it to the process at `name`. Null if that is not a
  // process of this host and user that can be reached; `error` is empty if it is of another host.
  std::unique_ptr<Half> propose(const std::string& name, const std::string& token, std::string* error);
  // The listening end: takes what a process proposed with `token`; null: nothing usable was.
  std::unique_ptr<Half> take(const std::string& token, std::string* error);
  // Whether processes are known that proposed nothing so far, or nothing that was taken.
  bool has_guests() const noexcept { return !guests_.empty(); }
  // Takes in processes that have connected, drops those that are late, and relieves movers' threads that a peer holds
  // up. To be called now and then.
  void tend();
  // Ends the movers' threads; to be called before the engines are destroyed. A port that is closed afterwards still
  // uses its mover.
  void stop() noexcept;
  // From now on, connections are opened without memory. `why`: a literal. Any thread may call it.
  void step_aside(const char* why) noexcept { aside_.store(why, std::memory_order_relaxed); }
  // Why it steps aside; null: it does not.
  const char* aside() const noexcept { return aside_.load(std::memory_order_relaxed); }
  // Makes the port of a connection, which moves its messages from now on. False: lack of memory or descriptors.
  // `session`: of the peer process.
  bool join(std::unique_ptr<Half> half, std::uint64_t session,
            const std::shared_ptr<engine::ConnectionCore>& connection);
  // The sessions of processes for which messages wait, none of which has moved since the last call.
  std::vector<std::uint64_t> stuck();

 private:
  struct Guest {
    int socket = -1;
    std::int64_t since_ns = 0;
    std::string token;  // empty: nothing arrived yet
    int memory = -1;
    pid_t process = 0;
  };
  struct Joined {
    std::uint64_t session = 0;
    std::weak_ptr<Port> port;
  };
  // A proposal that was not kept, and why.
  struct TurnedAway {
    std::string token;
    std::string why;
  };
  pid_t process_of(int socket, std::string* why) const;
  void welcome();
  void admit(Guest guest);
  bool make_room() noexcept;
  void turn_away(Guest* guest, std::string why);
  std::string why_missing(const std::string& token) const;
  void note_unreadable(const Port& port, const std::string& peer);
  bool read(Guest* guest);
  void dismiss(Guest* guest) noexcept;

  const bool lends_;
  const std::int64_t patience_ns_;
  const uid_t unmapped_;  // the user that the kernel names for all that this user namespace does not map
  std::string name_;
  int listening_ = -1;
  std::vector<Guest> guests_;  // processes that have proposed, or may do so
  std::deque<TurnedAway> turned_away_;
  bool lacks_descriptors_ = false;  // now: processes may wait that have connected
  std::vector<Joined> joined_;
  std::vector<std::unique_ptr<Mover>> movers_;
  const std::shared_ptr<Crew> crew_;
  engine::LogLimit unreadable_log_;
  std::size_t next_mover_ = 0;
  std::atomic<const char*> aside_{nullptr};
};

}  // namespace weft::local
