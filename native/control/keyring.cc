// Finds keys by their names in sessions, and compares what a peer has proved with what a session requires.
#include "native/control/keyring.h"

#include <algorithm>

#include "native/files/trusted_file.h"

namespace weft::control {
namespace {

constexpr std::size_t kSecretBytesMax = 65'536;
// Whoever records a handshake can test guesses offline, which finds shorter secrets.
constexpr std::size_t kSecretBytesMin = 16;

}  // namespace

Status Keyring::load(const std::string& secret_file, std::string* error) {
  if (!secret_file.empty()) {
    std::string problem;
    const bool is_read = files::read_trusted(secret_file, files::Readers::owner, kSecretBytesMax, &secret_, &problem);
    while (!secret_.empty() && (secret_.back() == '\n' || secret_.back() == '\r')) secret_.pop_back();
    if (is_read && secret_.size() < kSecretBytesMin)
      problem = "the file holds " + std::to_string(secret_.size()) +
                " bytes, and a secret that nobody can guess has at least " + std::to_string(kSecretBytesMin) +
                ": make one with openssl rand -hex 32";
    if (!problem.empty()) {
      *error = "WEFT_SECRET_FILE=" + secret_file + " cannot be used: " + problem;
      return Status::invalid_argument;
    }
  }
  tls_ = TlsContext::make(&tls_problem_);
  if (tls_ != nullptr || secret_.empty()) return Status::ok;
  *error = "WEFT_SECRET_FILE cannot be used: " + tls_problem_;
  return Status::system_error;
}

bool Keyring::find(const std::string& identity, Digest* key) {
  KeyName name;
  if (!decode(identity, &name)) return false;
  const auto of_dialled = [&](Guard guard) {
    return std::find_if(sessions_->begin(), sessions_->end(), [&, guard](const auto& each) {
      const Session& session = *each.second;
      if (!session.dialled || session.guard != guard) return false;
      return guard == Guard::secret || (session.node == name.node && id_of(session.handle_key) == name.key_id);
    });
  };
  if (name.guard == Guard::secret) {
    if (secret_.empty() || (*open_listeners_ == 0 && of_dialled(Guard::secret) == sessions_->end())) return false;
    *key = derive(name, secret_, HandleKey());
    return true;
  }
  if (name.to_owner) {
    if (name.node != node_) return false;
    *key = derive(name, secret_, key_);
    return true;
  }
  const auto session = of_dialled(Guard::key);
  if (session == sessions_->end()) return false;
  *key = derive(name, secret_, session->second->handle_key);
  return true;
}

// The key that this end proves when it dials a control socket of the session.
KeyName Keyring::name_for(const Session& session) const {
  KeyName name;
  name.guard = session.guard;
  name.to_owner = session.dialled;
  if (session.guard == Guard::key) name.node = session.dialled ? session.node : node_;
  if (session.guard == Guard::key && !session.dialled) name.key_id = id_of(key_);
  return name;
}

std::unique_ptr<TlsStream> Keyring::client_for(const Session& session) const {
  const KeyName name = name_for(session);
  if (name.guard == Guard::none || tls_ == nullptr) return nullptr;
  const Digest key = derive(name, secret_, session.dialled ? session.handle_key : key_);
  return TlsStream::make_client(*tls_, encode(name), key);
}

bool Keyring::has_proved(const KeyName& proof, const Session& session) const {
  if (proof.guard != session.guard) return false;
  if (proof.guard != Guard::key) return true;
  // The peer owns the key in a session that this end dialled with the peer's handle.
  if (proof.to_owner == session.dialled) return false;
  if (proof.to_owner) return proof.node == node_;
  return proof.node == session.node && proof.key_id == id_of(session.handle_key);
}

bool Keyring::admits(const KeyName& proof, const Hello& theirs) const noexcept {
  if (proof.guard == Guard::key) return proof.to_owner || theirs.joined != 0;
  if (proof.guard == Guard::none && !secret_.empty()) return false;
  return *open_listeners_ > 0 || theirs.joined != 0;
}

}  // namespace weft::control
