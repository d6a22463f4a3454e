// Runs a fuzz target on mutations of its corpus, which a seed determines: for compilers without libFuzzer.
//
//   fuzz_NAME                      WEFT_FUZZ_EXECUTIONS inputs (20,000) of the seed WEFT_FUZZ_SEED (1)
//   fuzz_NAME FILE...              only these inputs, such as one that a crash has left
//   fuzz_NAME --write-corpus DIR   writes the corpus, for libFuzzer
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>

#include "native/core/random.h"
#include "tests/native/fuzz/fuzz.h"

extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using weft::core::Random;
using weft::fuzz::Input;

constexpr std::size_t kBytesMax = 1u << 20;
constexpr std::uint64_t kCheckedFrom = 1000;  // fewer executions may accept nothing by chance

// What is running, for the handler of a crash.
const std::uint8_t* current = nullptr;
std::size_t current_bytes = 0;
std::uint64_t seed = 1, execution = 0;
char crash_file[256];

void report() {
  const int file = ::open(crash_file, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file >= 0 && ::write(file, current, current_bytes) == static_cast<ssize_t>(current_bytes)) {
    std::fprintf(stderr, "fuzz: the input is in %s; ", crash_file);
  }
  if (file >= 0) ::close(file);
  std::fprintf(stderr, "again with WEFT_FUZZ_SEED=%llu WEFT_FUZZ_EXECUTIONS=%llu\n",
               static_cast<unsigned long long>(seed), static_cast<unsigned long long>(execution + 1));
}

void on_signal(int signal) {
  std::signal(signal, SIG_DFL);
  report();
  std::raise(signal);
}

void watch_for_crashes(const char* program) {
  const char* const slash = std::strrchr(program, '/');
  std::snprintf(crash_file, sizeof crash_file, "crash-%s-%d", slash == nullptr ? program : slash + 1, ::getpid());
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(report);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, on_signal);
}

void run(const Input& input) {
  // A copy that ends where its memory ends, so that the address sanitizer sees every byte read beyond it.
  const auto copy = std::make_unique<std::uint8_t[]>(input.size());
  if (!input.empty()) std::memcpy(copy.get(), input.data(), input.size());
  current = copy.get();
  current_bytes = input.size();
  static_cast<void>(LLVMFuzzerTestOneInput(copy.get(), input.size()));
}

// A number at which code takes another branch, or any other.
std::uint64_t wild(Random& random) {
  constexpr std::uint64_t kEdges[] = {0, 1, 2, 63, 64, 100, 0x7F, 0x80, 0xFF, 0x100, 4096, 0x7FFF, 0x8000, 0xFFFF};
  switch (random.next() % 4) {
    case 0:
      return kEdges[random.next() % std::size(kEdges)];
    case 1:  // a power of two and its neighbours
      return (std::uint64_t{1} << random.next() % 64) + random.next() % 3 - 1;
    case 2:
      return ~std::uint64_t{0} - random.next() % 2;
    default:
      return random.next() >> random.next() % 64;
  }
}

void overwrite(Input* input, std::size_t at, const void* data, std::size_t bytes) {
  std::memcpy(input->data() + at, data, std::min(bytes, input->size() - at));
}

void insert(Input* input, std::size_t at, const void* data, std::size_t bytes) {
  const auto* first = static_cast<const std::uint8_t*>(data);
  input->insert(input->begin() + static_cast<std::ptrdiff_t>(at), first, first + bytes);
}

// Replaces the decimal number at `at`, or inserts one.
void change_number(Input* input, std::size_t at, Random& random) {
  const auto is_digit = [&](std::size_t where) {
    return where < input->size() && (*input)[where] >= '0' && (*input)[where] <= '9';
  };
  std::size_t end = at;
  while (is_digit(end)) ++end;
  input->erase(input->begin() + static_cast<std::ptrdiff_t>(at), input->begin() + static_cast<std::ptrdiff_t>(end));
  const std::string text = std::to_string(wild(random));
  insert(input, at, text.data(), text.size());
}

// Takes a piece of a good input, which brings in words and structure that random bytes do not have.
void splice(Input* input, std::size_t at, const Input& other, Random& random) {
  if (other.empty()) return;
  const std::size_t from = random.next() % other.size();
  const std::size_t bytes = 1 + random.next() % std::min<std::size_t>(other.size() - from, 64);
  if (random.next() % 2 == 0) return overwrite(input, at, other.data() + from, bytes);
  insert(input, at, other.data() + from, bytes);
}

void change(Input* input, const std::vector<Input>& corpus, Random& random) {
  if (input->empty()) input->push_back(0);
  const std::size_t at = random.next() % input->size();
  switch (random.next() % 10) {
    case 0:
      (*input)[at] = static_cast<std::uint8_t>((*input)[at] ^ (1u << random.next() % 8));
      break;
    case 1:
      (*input)[at] = static_cast<std::uint8_t>(random.next());
      break;
    case 2:
      input->resize(at);
      break;
    case 3: {
      const std::size_t bytes = std::min<std::size_t>(random.next() % 32, input->size() - at);
      const auto from = input->begin() + static_cast<std::ptrdiff_t>(at);
      input->erase(from, from + static_cast<std::ptrdiff_t>(bytes));
      break;
    }
    case 4:
      input->resize(std::min(input->size() + random.next() % 64, kBytesMax), static_cast<std::uint8_t>(random.next()));
      break;
    case 5:
    case 6:
      splice(input, at, corpus[random.next() % corpus.size()], random);
      break;
    case 7:
      change_number(input, at, random);
      break;
    default: {  // an aligned field
      const std::size_t width = std::size_t{1} << random.next() % 4;
      const std::uint64_t value = wild(random);
      overwrite(input, at / width * width, &value, width);
      break;
    }
  }
}

// The numbers of changes: mostly few, because many are refused by the first check.
void mutate(Input* input, const std::vector<Input>& corpus, Random& random) {
  const std::uint64_t changes = random.next() % 32 == 0 ? random.next() % 32 : random.next() % 4;
  for (std::uint64_t i = 0; i < changes; ++i) change(input, corpus, random);
  if (input->size() > kBytesMax) input->resize(kBytesMax);
}

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

int run_files(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    if (!in) {
      std::fprintf(stderr, "%s cannot be read\n", argv[i]);
      return 2;
    }
    run({std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()});
  }
  return 0;
}

int write_corpus(const std::vector<Input>& inputs, const std::string& directory) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::ofstream out(directory + "/" + std::to_string(i), std::ios::binary);
    out.write(reinterpret_cast<const char*>(inputs[i].data()), static_cast<std::streamsize>(inputs[i].size()));
    if (!out.flush()) {
      std::fprintf(stderr, "%s cannot be written\n", directory.c_str());
      return 2;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Input> inputs = weft::fuzz::corpus();
  weft::fuzz::require(!inputs.empty(), "the corpus is empty");
  if (argc == 3 && std::strcmp(argv[1], "--write-corpus") == 0) return write_corpus(inputs, argv[2]);
  watch_for_crashes(argv[0]);
  if (argc > 1) return run_files(argc, argv);
  seed = number_of("WEFT_FUZZ_SEED", 1);
  const std::uint64_t executions = number_of("WEFT_FUZZ_EXECUTIONS", 20'000);
  Random random(seed);
  Input input;
  for (execution = 0; execution < executions; ++execution) {
    input = inputs[random.next() % inputs.size()];
    // Every input of the corpus runs unchanged first.
    if (execution < inputs.size()) {
      input = inputs[execution];
    } else {
      mutate(&input, inputs, random);
    }
    run(input);
  }
  const unsigned long long ran = executions, taken = weft::fuzz::accepted;
  std::printf("%llu inputs from a corpus of %zu, %llu accepted\n", ran, inputs.size(), taken);
  if (executions < kCheckedFrom || weft::fuzz::accepted > executions / 100) return 0;
  std::fprintf(stderr,
               "fuzz: hardly any input was accepted: the target's corpus or its repair of checksums is stale\n");
  return 1;
}
