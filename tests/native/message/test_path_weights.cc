// Tests that connections follow a file of weights, engine by engine, and that a wrong file changes nothing.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "native/engine/telemetry_files.h"
#include "native/message/path_weights.h"
#include "tests/native/check.h"
#include "tests/native/runtime_pair.h"

namespace {

using namespace weft;
using namespace weft::message;
using weft::test::kPatienceNs;
using Pair = weft::test::RuntimePair;

struct File {
  const std::string path = "/tmp/weft-test-weights-" + std::to_string(::getpid());
  ~File() { ::unlink(path.c_str()); }
  void write(const std::string& text) const {
    const std::string fresh = path + ".new";
    std::FILE* out = std::fopen(fresh.c_str(), "wb");
    CHECK(out != nullptr);
    CHECK_EQUAL(std::fwrite(text.data(), 1, text.size(), out), text.size());
    CHECK_EQUAL(std::fclose(out), 0);
    CHECK_EQUAL(std::rename(fresh.c_str(), path.c_str()), 0);
  }
};

constexpr char kPage[] = "0-7-8-9-1";

std::string of_page(const std::string& peers, const std::string& page = kPage) {
  return R"({"weft_weights":2,"pages":{"0-7-8-9-0":{"10.0.0.9":{"0":[1e3]}},")" + page + "\":" + peers + "}}";
}

// The weights for the runtime that dials.
std::string of_dialer(const Pair& pair, const std::string& peers) {
  return of_page(peers, engine::page_identity(pair.b->telemetry_page()));
}

// The first two weights of the path policy of one engine's flows, as the connection reports them.
std::pair<double, double> weights_of(const message::Connection& connection) {
  for (const engine::PolicyInfo& info : connection.policies()) {
    if (info.family != "path") continue;
    const std::size_t at = info.params_fields.find("weight f ");
    CHECK(at != std::string::npos);
    const std::size_t offset = std::stoul(info.params_fields.substr(at + std::strlen("weight f ")));
    double found[2];
    std::memcpy(found, info.params.data() + offset, sizeof found);
    return {found[0], found[1]};
  }
  return {-1, -1};
}

bool until(const std::function<bool()>& seen) {
  const std::int64_t start = engine::now_ns();
  while (!seen() && engine::now_ns() - start < kPatienceNs) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return seen();
}

engine::Knobs knobs(const File& file) {
  engine::Knobs made;
  made.weights = file.path;
  made.path_policy = "weighted";
  made.engines = 1;
  made.paths = 4;
  return made;
}

}  // namespace

TEST(path_weights__are_those_of_the_page) {
  const File file;
  PeerWeights found;
  std::string error;
  file.write(of_page(R"({"10.1.0.2":{"0":[1.0,0.25, 0.0],"11":[0,1]},"10.2.0.2":{}})"));
  CHECK(read_weights(file.path, kPage, &found, &error));
  CHECK_EQUAL(found.size(), 1u);
  CHECK(found["10.1.0.2"][0] == (std::vector<double>{1.0, 0.25, 0.0}));
  CHECK(found["10.1.0.2"][11] == (std::vector<double>{0, 1}));
  CHECK(read_weights(file.path, "0-7-8-9-2", &found, &error));
  CHECK(found.empty());
}

TEST(path_weights__wrong_files_are_refused_in_one_line) {
  const File file;
  const std::string good = of_page(R"({"10.1.0.2":{"0":[1.0,0.25]}})");
  PeerWeights found;
  for (const char* const row : {"[2.0]", "[-1]", "[1", "[1e3]", "[0.5.5]", "[nan]", "[\"1\"]", "1", "[1,]"}) {
    std::string error;
    file.write(of_page(std::string("{\"10.1.0.2\":{\"0\":") + row + "}}"));
    CHECK(!read_weights(file.path, kPage, &found, &error));
    CHECK_EQUAL(error, std::string("it is no file of weights: give one that weft plan watch writes"));
    CHECK(found.empty());
  }
  for (std::size_t length = 0; length < good.size(); ++length) {
    std::string error;
    file.write(good.substr(0, length));
    CHECK(!read_weights(file.path, kPage, &found, &error));
    CHECK(found.empty());
  }
  std::string error;
  CHECK_EQUAL(::unlink(file.path.c_str()), 0);
  CHECK_EQUAL(::mkfifo(file.path.c_str(), 0600), 0);  // nobody writes into it
  CHECK(!read_weights(file.path, kPage, &found, &error));
  CHECK_EQUAL(error, std::string("it is not a regular file"));
  file.write(R"({"weft_weights":9,"pages":{}})");
  CHECK(!read_weights(file.path, kPage, &found, &error));
  CHECK_EQUAL(error, std::string("the file has version 9, and this weft reads 2"));
}

TEST(path_weights__connections_follow_the_file) {
  const File file;
  Pair pair(knobs(file));
  CHECK(weights_of(*pair.here) == std::make_pair(1.0, 1.0));
  file.write(of_dialer(pair, R"({"127.0.0.1":{"0":[1.0,0.25,1,1]}})"));
  CHECK(until([&] { return weights_of(*pair.here) == std::make_pair(10'000.0, 2'500.0); }));
  file.write("nonsense");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // time in which nothing may change
  CHECK(weights_of(*pair.here) == std::make_pair(10'000.0, 2'500.0));
  // Weights of an engine that the connection does not use change nothing.
  file.write(of_dialer(pair, R"({"127.0.0.1":{"7":[0,1,1,1]},"10.0.0.1":{"0":[0,1,1,1]}})"));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(weights_of(*pair.here) == std::make_pair(10'000.0, 2'500.0));
  file.write(of_dialer(pair, R"({"127.0.0.1":{"0":[0,1,1,1]}})"));
  CHECK(until([&] { return weights_of(*pair.here) == std::make_pair(0.0, 10'000.0); }));
  pair.connect();  // a new connection to the same peer
  CHECK(until([&] { return weights_of(*pair.here) == std::make_pair(0.0, 10'000.0); }));
}
