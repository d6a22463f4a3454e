// TLS 1.3 with a pre-shared key, on byte buffers instead of sockets. It uses OpenSSL, which is loaded at run time.
// Control sockets use TLS if a secret is set; without a secret OpenSSL is not needed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace weft::control {

struct OpenSsl;  // pointers to the functions of libssl that are used

// The pre-shared key and the OpenSSL contexts of both roles, shared by all streams of a process.
class TlsContext {
 public:
  // Returns null with `error` set if OpenSSL 1.1.1 or newer is not installed, or refuses TLS 1.3 with a pre-shared key.
  static std::unique_ptr<TlsContext> make(const std::string& secret, std::string* error);
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
// socket.
class TlsStream {
 public:
  // Returns null if memory runs out.
  static std::unique_ptr<TlsStream> make(const TlsContext& context, bool client);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // True once both ends have proved that they have the secret.
  bool established() const noexcept { return established_; }
  // Decrypts input from the socket and appends the result to `plain`. Returns false if the peer does not have the
  // secret, or the stream is damaged; there may still be output with an alert to send.
  bool on_received(const char* data, std::size_t bytes, std::string* plain);
  // Encrypts plaintext to send; before the handshake is complete, the plaintext is buffered. Returns false if the
  // stream has failed.
  bool send(const std::string& plain);
  // Appends the ciphertext to write to the socket.
  void take_output(std::string* cipher);

 private:
  explicit TlsStream(const OpenSsl* library) : library_(library) {}
  bool advance();
  bool flush();
  const OpenSsl* library_;
  void* ssl_ = nullptr;
  void* in_ = nullptr;  // in_ and out_ are memory BIOs, owned by `ssl_`
  void* out_ = nullptr;
  std::string waiting_;  // plaintext sent before the handshake was complete
  bool established_ = false;
  bool failed_ = false;
};

}  // namespace weft::control
