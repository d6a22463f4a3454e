// TLS 1.3 with pre-shared keys, on byte buffers instead of sockets. It uses OpenSSL, which is loaded at run time, so it
// is not needed to build, nor by a process whose listeners and dials are all open and without a secret.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "native/control/sha256.h"

namespace weft::control {

struct OpenSsl;  // pointers to the functions of libssl that are used

// Finds the pre-shared key that a dialling end names. Returns false if there is no such key, or if it may not be used.
class TlsKeys {
 public:
  virtual bool find(const std::string& identity, Digest* key) = 0;

 protected:
  ~TlsKeys() = default;
};

// The OpenSSL contexts of both roles, shared by all streams of a process.
class TlsContext {
 public:
  // Returns null with `error` set if OpenSSL 1.1.1 or newer is not installed, or refuses TLS 1.3 with a pre-shared key.
  static std::unique_ptr<TlsContext> make(std::string* error);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsStream;
  explicit TlsContext(const OpenSsl* library) : library_(library) {}
  const OpenSsl* library_;
  void* client_ = nullptr;  // SSL_CTX objects of the two roles
  void* server_ = nullptr;
};

// One TLS connection. It converts between plaintext and the ciphertext that the caller reads from and writes to a
// socket. Any thread may use it, one at a time: each call leaves the thread's OpenSSL error queue empty.
class TlsStream {
 public:
  // Both return null if memory runs out. A client proves `key`, which the server finds by `identity`.
  static std::unique_ptr<TlsStream> make_client(const TlsContext& context, std::string identity, const Digest& key);
  static std::unique_ptr<TlsStream> make_server(const TlsContext& context, TlsKeys* keys);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // True once both ends have proved that they have the key.
  bool established() const noexcept { return established_; }
  // The name of the key that both ends have proved, or that was refused.
  const std::string& identity() const noexcept { return identity_; }
  // Whether the server knows no key of that name.
  bool unknown_key() const noexcept { return unknown_key_; }
  // Decrypts input from the socket and appends the result to `plain`. Returns false if the peer does not have the
  // key, or the stream is damaged; there may still be output with an alert to send.
  bool on_received(const char* data, std::size_t bytes, std::string* plain);
  // Encrypts plaintext to send; before the handshake is complete, the plaintext is buffered. Returns false if the
  // stream has failed.
  bool send(const std::string& plain);
  // Appends the ciphertext to write to the socket.
  void take_output(std::string* cipher);

  // Called by OpenSSL during the handshake: returns an SSL_SESSION with the key, or null.
  void* offered_session(const unsigned char** identity, std::size_t* identity_bytes) noexcept;
  void* found_session(const unsigned char* identity, std::size_t identity_bytes) noexcept;

 private:
  TlsStream(const OpenSsl* library, TlsKeys* keys) : library_(library), keys_(keys) {}
  static std::unique_ptr<TlsStream> start(std::unique_ptr<TlsStream> made, void* context);
  bool advance();
  bool flush();
  void* session_with(const Digest& key) noexcept;
  const OpenSsl* library_;
  TlsKeys* keys_;  // null at a client
  void* ssl_ = nullptr;
  void* in_ = nullptr;  // in_ and out_ are memory BIOs, owned by `ssl_`
  void* out_ = nullptr;
  std::string identity_;
  Digest key_{};         // at a client: the key that it proves to the server
  std::string waiting_;  // plaintext sent before the handshake was complete
  bool established_ = false;
  bool failed_ = false;
  bool unknown_key_ = false;
};

}  // namespace weft::control
