// TLS 1.3 with a pre-shared key over bytes that somebody else moves, by OpenSSL, which is found at run time.
// Control sockets use it where a secret is set; without one OpenSSL is not needed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace weft::control {

struct OpenSsl;  // what we call of libssl

// What all streams of one process share: the key, for both roles.
class TlsContext {
 public:
  // Null with `error` set where no OpenSSL of version 1.1.1 or newer is installed.
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

// One connection: cipher text in and out, plain text in and out.
class TlsStream {
 public:
  // Null when out of memory.
  static std::unique_ptr<TlsStream> make(const TlsContext& context, bool client);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // True once both ends have proved that they hold the secret.
  bool established() const noexcept { return established_; }
  // Takes what came from the socket and appends what it says to `plain`. False: the other end does not hold the secret,
  // or somebody damaged the stream; what is to be sent (an alert) is still in output.
  bool on_received(const char* data, std::size_t bytes, std::string* plain);
  // Plain text to send; waits inside until the handshake is through. False: the stream has failed.
  bool send(const std::string& plain);
  // Appends what is to go to the socket.
  void take_output(std::string* cipher);

 private:
  explicit TlsStream(const OpenSsl* library) : library_(library) {}
  bool advance();
  bool flush();
  const OpenSsl* library_;
  void* ssl_ = nullptr;
  void* in_ = nullptr;  // BIOs, owned by `ssl_`
  void* out_ = nullptr;
  std::string waiting_;  // plain text that was sent before the handshake was through
  bool established_ = false;
  bool failed_ = false;
};

}  // namespace weft::control
