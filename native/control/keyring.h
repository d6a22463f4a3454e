// The keys of this process: the secret, the key of its listeners' handles, and those that it was given in handles. It
// says which key a control socket proves in its TLS handshake, and what a peer must have proved.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "native/control/control_socket.h"
#include "native/control/frames.h"
#include "native/control/session.h"
#include "native/control/tls.h"

namespace weft::control {

class Keyring final : public TlsKeys {
 public:
  using Sessions = std::map<std::uint64_t, std::unique_ptr<Session>>;

  // `node`: number of this process. `open_listeners`: number of open listeners. It and `sessions` belong to the control
  // plane.
  Keyring(std::uint64_t node, const Sessions* sessions, const std::atomic<int>* open_listeners) noexcept
      : node_(node), sessions_(sessions), open_listeners_(open_listeners) {}

  // Reads the secret, if a file is named. Fails if the file cannot be used, or if it is named and TLS cannot be used.
  Status load(const std::string& secret_file, std::string* error);
  bool has_secret() const noexcept { return !secret_.empty(); }
  TlsContext* tls() const noexcept { return tls_.get(); }  // null: this process cannot use TLS
  const std::string& tls_problem() const noexcept { return tls_problem_; }
  // The key that this process writes into its listeners' handles; all zero without TLS.
  HandleKey own_key() const noexcept { return tls_ == nullptr ? HandleKey() : key_; }

  // Called during the TLS handshake of an accepted control socket.
  bool find(const std::string& identity, Digest* key) override;
  // The client's end of TLS for a control socket that this end dials. Null if the session has neither a secret nor a
  // handle's key (Guard::none), if TLS cannot be used, or if memory runs out.
  std::unique_ptr<TlsStream> client_for(const Session& session) const;
  // What this end has to prove on the control sockets of a session that it dials. `key`: the key of the dialled handle;
  // all zero: no handle.
  Guard guard_for(const HandleKey& key) const noexcept {
    return is_set(key) ? Guard::key : secret_.empty() ? Guard::none : Guard::secret;
  }
  // Whether a control socket that the peer dialled has proved the key or secret that the session requires.
  bool has_proved(const KeyName& proof, const Session& session) const;
  // Whether this end may answer a hello. A peer that has not proved a handle's key is answered only if there is an open
  // listener, or if it rejoins a session that this end has dialled without such a key. If there is a secret, the peer
  // must have proved that or a handle's key.
  bool admits(const KeyName& proof, const Hello& theirs) const noexcept;

 private:
  KeyName name_for(const Session& session) const;

  const std::uint64_t node_;
  const Sessions* sessions_;
  const std::atomic<int>* open_listeners_;
  std::unique_ptr<TlsContext> tls_;
  std::string tls_problem_;
  std::string secret_;  // empty if none is set
  const HandleKey key_ = random_key();
};

}  // namespace weft::control
