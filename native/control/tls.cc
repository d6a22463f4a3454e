// TLS on byte buffers by OpenSSL. The prototypes below are OpenSSL's stable interface since 1.1.1, so its headers are
// not needed to build. Only external pre-shared keys with an ephemeral Diffie-Hellman exchange (RFC 8446, section 2.2)
// are offered and accepted: no certificates and no other TLS version. A key used in both roles allows a reflection
// attack (Drucker and Gueron, "Selfie"): keys of handles differ by direction, and with a secret the hello frames name
// both ends, and the control plane checks them.
#include "native/control/tls.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "native/control/sha256.h"

namespace weft::control {

namespace {

extern "C" {
using UseSession = int(void* ssl, const void* digest, const unsigned char** identity, std::size_t* identity_bytes,
                       void** session);
using FindSession = int(void* ssl, const unsigned char* identity, std::size_t identity_bytes, void** session);
}

}  // namespace

#define WEFT_OPENSSL_TABLE(X)                                                     \
  X(TLS_method, const void*, (void))                                              \
  X(SSL_CTX_new, void*, (const void*))                                            \
  X(SSL_CTX_free, void, (void*))                                                  \
  X(SSL_CTX_ctrl, long, (void*, int, long, void*))                                \
  X(SSL_CTX_set_ciphersuites, int, (void*, const char*))                          \
  X(SSL_CTX_set_num_tickets, int, (void*, std::size_t))                           \
  X(SSL_CTX_set_verify, void, (void*, int, void*))                                \
  X(SSL_CTX_set_psk_use_session_callback, void, (void*, UseSession*))             \
  X(SSL_CTX_set_psk_find_session_callback, void, (void*, FindSession*))           \
  X(SSL_set_ex_data, int, (void*, int, void*))                                    \
  X(SSL_get_ex_data, void*, (const void*, int))                                   \
  X(SSL_new, void*, (void*))                                                      \
  X(SSL_free, void, (void*))                                                      \
  X(SSL_set_bio, void, (void*, void*, void*))                                     \
  X(SSL_set_connect_state, void, (void*))                                         \
  X(SSL_set_accept_state, void, (void*))                                          \
  X(SSL_do_handshake, int, (void*))                                               \
  X(SSL_get_error, int, (const void*, int))                                       \
  X(SSL_session_reused, int, (const void*))                                       \
  X(SSL_read, int, (void*, void*, int))                                           \
  X(SSL_write, int, (void*, const void*, int))                                    \
  X(SSL_CIPHER_find, const void*, (void*, const unsigned char*))                  \
  X(SSL_SESSION_new, void*, (void))                                               \
  X(SSL_SESSION_free, void, (void*))                                              \
  X(SSL_SESSION_set1_master_key, int, (void*, const unsigned char*, std::size_t)) \
  X(SSL_SESSION_set_cipher, int, (void*, const void*))                            \
  X(SSL_SESSION_set_protocol_version, int, (void*, int))                          \
  X(BIO_new, void*, (const void*))                                                \
  X(BIO_s_mem, const void*, (void))                                               \
  X(BIO_read, int, (void*, void*, int))                                           \
  X(BIO_write, int, (void*, const void*, int))                                    \
  X(BIO_free, int, (void*))                                                       \
  X(OPENSSL_init_ssl, int, (std::uint64_t, const void*))                          \
  X(ERR_clear_error, void, (void))

struct OpenSsl {
#define WEFT_OPENSSL_FIELD(name, result, arguments) result(*name) arguments = nullptr;
  WEFT_OPENSSL_TABLE(WEFT_OPENSSL_FIELD)
#undef WEFT_OPENSSL_FIELD
};

namespace {

constexpr int kTls13 = 0x0304;
constexpr int kSetMinVersion = 123, kSetMaxVersion = 124;  // command numbers of SSL_CTX_ctrl
constexpr int kVerifyPeer = 1;
constexpr int kSetMode = 33;
constexpr long kReleaseBuffers = 0x10;  // an idle stream keeps no 16 KB buffers
constexpr std::uint64_t kNoAtExit = 0x80000;
constexpr int kWantRead = 2;
constexpr char kCipherSuite[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherId[2] = {0x13, 0x01};  // code of kCipherSuite (RFC 8446, appendix B.4)

// This mutex and the flag below are never destroyed, because threads use them until the process ends.
std::mutex& gate() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

bool& has_ended() noexcept {
  static bool ended = false;  // guarded by gate()
  return ended;
}

// Registers an exit handler that runs before OpenSSL's own, which was registered earlier, and waits until no thread is
// in OpenSSL. A forked child has no thread that uses OpenSSL, but may have inherited a locked mutex.
void end_uses_at_exit() noexcept {
  static const pid_t loaded_by = ::getpid();
  static_cast<void>(std::atexit([] {
    if (::getpid() != loaded_by) return;
    const std::lock_guard<std::mutex> lock(gate());
    has_ended() = true;
  }));
}

const OpenSsl* load(std::string* error) {
  static const OpenSsl* const loaded = []() -> const OpenSsl* {
    for (const char* name : {"libssl.so.3", "libssl.so.1.1"}) {
      void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      auto* const made = new OpenSsl;
      bool whole = true;
#define WEFT_OPENSSL_FIND(name, result, arguments)                              \
  made->name = reinterpret_cast<decltype(made->name)>(::dlsym(library, #name)); \
  whole = whole && made->name != nullptr;
      WEFT_OPENSSL_TABLE(WEFT_OPENSSL_FIND)
#undef WEFT_OPENSSL_FIND
      if (whole && made->OPENSSL_init_ssl(kNoAtExit, nullptr) == 1) {
        end_uses_at_exit();
        return made;
      }
      delete made;
    }
    return nullptr;
  }();
  if (loaded == nullptr)
    *error = "OpenSSL 1.1.1 or newer is needed (libssl.so.3 or libssl.so.1.1), and this host has none: install it";
  return loaded;
}

// The TlsStream of an SSL object, which is stored as the object's application data.
TlsStream* stream_of(const OpenSsl* library, void* ssl) {
  return static_cast<TlsStream*>(library->SSL_get_ex_data(ssl, 0));
}

extern "C" int use_session(void* ssl, const void*, const unsigned char** identity, std::size_t* identity_bytes,
                           void** session) {
  std::string unused;
  *session = stream_of(load(&unused), ssl)->offered_session(identity, identity_bytes);
  return *session != nullptr ? 1 : 0;
}

// The server's callback that finds the pre-shared key. If it sets no SSL_SESSION, the handshake fails, because there is
// no certificate.
extern "C" int find_session(void* ssl, const unsigned char* identity, std::size_t identity_bytes, void** session) {
  std::string unused;
  *session = stream_of(load(&unused), ssl)->found_session(identity, identity_bytes);
  return 1;
}

void* make_context(const OpenSsl* library, bool client) {
  void* context = library->SSL_CTX_new(library->TLS_method());
  if (context == nullptr) return nullptr;
  if (library->SSL_CTX_ctrl(context, kSetMinVersion, kTls13, nullptr) == 1 &&
      library->SSL_CTX_ctrl(context, kSetMaxVersion, kTls13, nullptr) == 1 &&
      library->SSL_CTX_set_ciphersuites(context, kCipherSuite) == 1 &&
      library->SSL_CTX_set_num_tickets(context, 0) == 1) {
    library->SSL_CTX_ctrl(context, kSetMode, kReleaseBuffers, nullptr);
    // Rejects every certificate, because no certificate authority is configured. A listener has no certificate and
    // requests none.
    if (client) library->SSL_CTX_set_verify(context, kVerifyPeer, nullptr);
    library->SSL_CTX_set_psk_use_session_callback(context, use_session);
    library->SSL_CTX_set_psk_find_session_callback(context, find_session);
    return context;
  }
  library->SSL_CTX_free(context);
  return nullptr;
}

// Exists while a thread uses OpenSSL; only one thread does at a time. Converts to false once the process is exiting:
// exit handlers free memory that OpenSSL needs while the control thread still runs. Clears the thread's OpenSSL error
// queue, which SSL_get_error() reads, before and after: the thread may belong to the application, which may use OpenSSL
// itself.
class Use {
 public:
  explicit Use(const OpenSsl* library) : lock_(gate()), library_(has_ended() ? nullptr : library) {
    if (library_ != nullptr) library_->ERR_clear_error();
  }
  ~Use() {
    if (library_ != nullptr) library_->ERR_clear_error();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  explicit operator bool() const noexcept { return library_ != nullptr; }

 private:
  std::lock_guard<std::mutex> lock_;
  const OpenSsl* library_;
};

}  // namespace

std::unique_ptr<TlsContext> TlsContext::make(std::string* error) {
  const OpenSsl* library = load(error);
  if (library == nullptr) return nullptr;
  const Use use(library);
  if (!use) return nullptr;
  std::unique_ptr<TlsContext> made(new TlsContext(library));
  for (void** context : {&made->client_, &made->server_}) {
    *context = make_context(library, context == &made->client_);
    if (*context == nullptr) {
      *error = "OpenSSL refuses TLS 1.3 with a pre-shared key: is it forbidden by this host's crypto policy?";
      return nullptr;
    }
  }
  return made;
}

TlsContext::~TlsContext() {
  const Use use(library_);
  if (!use) return;
  for (void* context : {client_, server_}) {
    if (context != nullptr) library_->SSL_CTX_free(context);
  }
}

std::unique_ptr<TlsStream> TlsStream::make_client(const TlsContext& context, std::string identity, const Digest& key) {
  const Use use(context.library_);
  if (!use) return nullptr;
  std::unique_ptr<TlsStream> made(new TlsStream(context.library_, nullptr));
  made->identity_ = std::move(identity);
  made->key_ = key;
  made = start(std::move(made), context.client_);
  if (made == nullptr) return nullptr;
  made->library_->SSL_set_connect_state(made->ssl_);
  static_cast<void>(made->advance());
  return made;
}

std::unique_ptr<TlsStream> TlsStream::make_server(const TlsContext& context, TlsKeys* keys) {
  const Use use(context.library_);
  if (!use) return nullptr;
  std::unique_ptr<TlsStream> made(new TlsStream(context.library_, keys));
  made = start(std::move(made), context.server_);
  if (made != nullptr) made->library_->SSL_set_accept_state(made->ssl_);
  return made;
}

std::unique_ptr<TlsStream> TlsStream::start(std::unique_ptr<TlsStream> made, void* context) {
  const OpenSsl* library = made->library_;
  made->ssl_ = library->SSL_new(context);
  if (made->ssl_ == nullptr || library->SSL_set_ex_data(made->ssl_, 0, made.get()) != 1) return nullptr;
  made->in_ = library->BIO_new(library->BIO_s_mem());
  made->out_ = library->BIO_new(library->BIO_s_mem());
  if (made->in_ == nullptr || made->out_ == nullptr) {
    if (made->in_ != nullptr) library->BIO_free(made->in_);
    if (made->out_ != nullptr) library->BIO_free(made->out_);
    return nullptr;
  }
  library->SSL_set_bio(made->ssl_, made->in_, made->out_);
  return made;
}

TlsStream::~TlsStream() {
  const Use use(library_);
  if (use && ssl_ != nullptr) library_->SSL_free(ssl_);
}

void* TlsStream::session_with(const Digest& key) noexcept {
  void* session = library_->SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  const void* cipher = library_->SSL_CIPHER_find(ssl_, kCipherId);
  if (cipher != nullptr && library_->SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
      library_->SSL_SESSION_set_cipher(session, cipher) == 1 &&
      library_->SSL_SESSION_set_protocol_version(session, kTls13) == 1) {
    return session;
  }
  library_->SSL_SESSION_free(session);
  return nullptr;
}

void* TlsStream::offered_session(const unsigned char** identity, std::size_t* identity_bytes) noexcept {
  *identity = reinterpret_cast<const unsigned char*>(identity_.data());
  *identity_bytes = identity_.size();
  return session_with(key_);
}

void* TlsStream::found_session(const unsigned char* identity, std::size_t identity_bytes) noexcept {
  try {
    identity_.assign(reinterpret_cast<const char*>(identity), identity_bytes);
    Digest key;
    unknown_key_ = !keys_->find(identity_, &key);
    return unknown_key_ ? nullptr : session_with(key);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

bool TlsStream::advance() {
  if (failed_) return false;
  if (established_) return true;
  const int result = library_->SSL_do_handshake(ssl_);
  if (result == 1) {
    // OpenSSL reports a handshake with a pre-shared key as resumed. Any other handshake would not prove that the peer
    // has the key.
    failed_ = library_->SSL_session_reused(ssl_) != 1;
    established_ = !failed_;
    return established_ && flush();
  }
  failed_ = library_->SSL_get_error(ssl_, result) != kWantRead;
  return !failed_;
}

bool TlsStream::flush() {
  while (!waiting_.empty()) {
    const int wrote = library_->SSL_write(ssl_, waiting_.data(), static_cast<int>(waiting_.size()));
    if (wrote <= 0) {
      failed_ = true;
      return false;
    }
    waiting_.erase(0, static_cast<std::size_t>(wrote));
  }
  return true;
}

bool TlsStream::on_received(const char* data, std::size_t bytes, std::string* plain) {
  if (failed_) return false;
  const Use use(library_);
  if (!use) return false;
  while (bytes != 0) {
    const int took = library_->BIO_write(in_, data, static_cast<int>(bytes));
    if (took <= 0) {
      failed_ = true;
      return false;
    }
    data += took;
    bytes -= static_cast<std::size_t>(took);
  }
  if (!advance()) return false;
  char buffer[16384];
  while (established_) {
    const int got = library_->SSL_read(ssl_, buffer, sizeof buffer);
    if (got > 0) {
      plain->append(buffer, static_cast<std::size_t>(got));
      continue;
    }
    failed_ = library_->SSL_get_error(ssl_, got) != kWantRead;
    return !failed_;
  }
  return true;
}

bool TlsStream::send(const std::string& plain) {
  if (failed_) return false;
  const Use use(library_);
  if (!use) return false;
  waiting_ += plain;
  return !established_ || flush();
}

void TlsStream::take_output(std::string* cipher) {
  const Use use(library_);
  if (!use) return;
  char buffer[16384];
  for (int got = 0; (got = library_->BIO_read(out_, buffer, sizeof buffer)) > 0;) {
    cipher->append(buffer, static_cast<std::size_t>(got));
  }
}

}  // namespace weft::control
