// Copies bytes of a mapped allocation to memory of this process, in one go.
#pragma once

#include <cstdint>
#include <string>

#include "native/gpu/copier.h"
#include "native/gpu/layout.h"

namespace weft::gpu {

class SharedCopy {
 public:
  explicit SharedCopy(Copier* copier) noexcept : copier_(copier) {}
  SharedCopy(const SharedCopy&) = delete;
  SharedCopy& operator=(const SharedCopy&) = delete;
  ~SharedCopy();

  // Launches the copy of the first `bytes` bytes of the layout, or into pinned memory. Only if no copy is in progress.
  // False: error() says why; then no copy is in progress.
  bool begin(Address from, const Layout& to, std::uint64_t bytes, const PieceTable& table) noexcept;
  bool begin(Address from, std::uint8_t* pinned, std::uint64_t bytes) noexcept;
  // Whether the copy has ended, with or without an error.
  bool ended() noexcept;
  bool failed() const noexcept { return !error_.empty(); }
  const std::string& error() const noexcept { return error_; }

 private:
  static constexpr int kRefusedMax = 100;  // as Transfer's
  template <class Submit, class Launch>
  bool start(const Submit& submit, const Launch& launch) noexcept;
  void fail(const char* symbol, Result result) noexcept;

  Copier* const copier_;
  Event done_ = nullptr;
  PersistentKernel::Ticket ticket_ = 0;
  bool begun_ = false;
  int refused_ = 0;
  std::string error_;
};

}  // namespace weft::gpu
