// The native test framework: named cases, checks that report both values, and a main that runs them. A failed check
// ends its case, and a failed case fails the executable; crashes are not caught.
#pragma once

#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace weft::test {

struct Failure {};

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Registration {
  Registration(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

template <typename T>
std::string show(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<long long>(value));
  } else {
    std::ostringstream out;
    out << value;
    return out.str();
  }
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  throw Failure();
}

template <typename A, typename B>
void check_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (!(a == b)) fail(file, line, std::string(text) + ": " + show(a) + " is not " + show(b));
}

// Runs the cases whose name contains the first argument, or all cases; returns 1 if a case failed or none was found.
inline int run(int argc, char** argv) {
  ::umask(022);  // weft reads no plan, policy or secret that other users can write
  int failed = 0;
  int ran = 0;
  for (const Case& test : cases()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    ++ran;
    try {
      test.body();
      std::printf("ok   %s\n", test.name);
    } catch (const Failure&) {
      ++failed;
      std::printf("FAIL %s\n", test.name);
    }
  }
  std::printf("%d of %d failed\n", failed, ran);
  return failed > 0 || ran == 0 ? 1 : 0;
}

}  // namespace weft::test

// Defines a test case: TEST(unit__case) { ... }
#define TEST(name)                                                             \
  static void name();                                                          \
  static const ::weft::test::Registration registration_of_##name(#name, name); \
  static void name()
#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) ::weft::test::fail(__FILE__, __LINE__, "not true: " #condition); \
  } while (false)
#define CHECK_EQUAL(a, b) ::weft::test::check_equal((a), (b), #a " == " #b, __FILE__, __LINE__)

int main(int argc, char** argv) { return weft::test::run(argc, argv); }
