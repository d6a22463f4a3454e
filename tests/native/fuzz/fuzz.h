// What a fuzz target defines: a corpus, and the entry point of libFuzzer. mutation_driver.cc runs it without libFuzzer.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);

namespace weft::fuzz {

using Input = std::vector<std::uint8_t>;

// Good inputs, which the driver mutates.
std::vector<Input> corpus();

// How many inputs the target's parser has accepted. If there were none, the code behind its first checks was not
// tested.
inline std::uint64_t accepted = 0;

inline void require(bool holds, const std::string& otherwise) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", otherwise.c_str());
  std::abort();
}

inline Input input_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace weft::fuzz
