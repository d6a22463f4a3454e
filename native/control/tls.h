// TLS 1.3 with a pre-shared key on byte buffers, without sockets, by OpenSSL, which is loaded at run time. Control
// sockets use it if a secret is set; without a secret OpenSSL is not needed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace weft::control {

struct OpenSsl;  // the functions of libssl that are used

// State shared by all streams of a process: the key, for both roles.
class TlsContext {
 public:
  // Null with `error` if OpenSSL 1.1.1 or newer is not installed.
  static std::unique_ptr<TlsContext> make(const std::string& secret, std::string* error);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsStream;
  explicit TlsContext(const OpenSsl* library) : library_(library) {}
  const OpenSsl* library_;
  void* client_ = nullptr;  // SSL_CTX
  void* server_ = nullptr;
};

// A TLS connection: ciphertext in and out, plaintext in and out.
class TlsStream {
 public:
  // Null if memory runs out.
  static std::unique_ptr<TlsStream> make(const TlsContext& context, bool client);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // True once both ends have proved that they have the secret.
  bool established() const noexcept { return established_; }
  // Decrypts input from the socket and appends the result to `plain`. False: the peer does not have the secret, or the
  // stream is damaged; output may still contain an alert to send.
  bool on_received(const char* data, std::size_t bytes, std::string* plain);
  // Encrypts plaintext to send; it is buffered until the handshake is complete. False: the stream has failed.
  bool send(const std::string& plain);
  // Appends output for the socket.
  void take_output(std::string* cipher);

 private:
  explicit TlsStream(const OpenSsl* library) : library_(library) {}
  bool advance();
  bool flush();
  const OpenSsl* library_;
  void* ssl_ = nullptr;
  void* in_ = nullptr;  // BIOs, owned by `ssl_`
  void* out_ = nullptr;
  std::string waiting_;  // plaintext sent before the handshake was complete
  bool established_ = false;
  bool failed_ = false;
};

}  // namespace weft::control
