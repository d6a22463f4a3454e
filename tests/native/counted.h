// Counts allocations: calls of every operator new, and of malloc unless a sanitizer has replaced it. It defines the
// global operators, so only one source file of a test may include it.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WEFT_SANITIZED 1
#else
#define WEFT_SANITIZED 0
#endif

namespace weft::test {

inline std::atomic<long> allocations{0};
inline std::atomic<long> live_bytes{0};

inline void on_allocated(void* at) {
  if (at == nullptr) return;
  allocations.fetch_add(1, std::memory_order_relaxed);
  live_bytes.fetch_add(static_cast<long>(malloc_usable_size(at)), std::memory_order_relaxed);
}
inline void on_freed(void* at) {
  if (at != nullptr) live_bytes.fetch_sub(static_cast<long>(malloc_usable_size(at)), std::memory_order_relaxed);
}

}  // namespace weft::test

#if !WEFT_SANITIZED
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* at, std::size_t bytes);
void __libc_free(void* at);

void* malloc(std::size_t bytes) {
  void* at = __libc_malloc(bytes);
  weft::test::on_allocated(at);
  return at;
}
void* calloc(std::size_t count, std::size_t bytes) {
  void* at = __libc_calloc(count, bytes);
  weft::test::on_allocated(at);
  return at;
}
void* realloc(void* before, std::size_t bytes) {
  weft::test::on_freed(before);
  void* at = __libc_realloc(before, bytes);
  weft::test::on_allocated(at);
  return at;
}
void free(void* at) {
  weft::test::on_freed(at);
  __libc_free(at);
}
}
#else
// Sanitizers replace malloc, so only C++ allocations are counted.
void* operator new(std::size_t bytes) {
  void* at = std::malloc(bytes);
  if (at == nullptr) throw std::bad_alloc();
  weft::test::on_allocated(at);
  return at;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  void* at = std::malloc(bytes);
  weft::test::on_allocated(at);
  return at;
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t& tag) noexcept { return operator new(bytes, tag); }
void operator delete(void* at) noexcept {
  weft::test::on_freed(at);
  std::free(at);
}
void operator delete(void* at, std::size_t) noexcept { operator delete(at); }
void operator delete[](void* at) noexcept { operator delete(at); }
void operator delete[](void* at, std::size_t) noexcept { operator delete(at); }
#endif
