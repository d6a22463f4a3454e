// Tests that a plan file gives its pairs of ports, and that a wrong or truncated one gives none and one line.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "native/datapath/udp/port_plan.h"
#include "tests/native/check.h"

using weft::datapath::PortPlan;

namespace {

const char* const kPlan =
    R"({"weft_plan":1,"fabric":"x\"y","links":["a>b",[1.5e3,{"k":null}]],"later":{"a":[true,-1]},"jobs":{
    "one":[{"from":"a","from_address":"10.0.0.2","to_address":"10.1.0.2","ports":[[20000,20001],[20003,20002]],
            "weights":[0.5,0.5]},{"from_address":"10.1.0.2","to_address":"10.0.0.2","ports":[]}],
    "two":[{"from_address":"10.0.0.2","to_address":"10.1.0.2","ports":[[30000,30001]]}]}})";

bool read(const std::string& text, PortPlan* plan, std::string* error) {
  const std::string file = "/tmp/weft-test-plan-" + std::to_string(::getpid());
  std::FILE* out = std::fopen(file.c_str(), "wb");
  CHECK(out != nullptr);
  CHECK_EQUAL(std::fwrite(text.data(), 1, text.size(), out), text.size());
  CHECK_EQUAL(std::fclose(out), 0);
  error->clear();
  const bool good = plan->read(file, error);
  ::unlink(file.c_str());
  return good;
}

}  // namespace

TEST(port_plan__gives_the_pairs_of_all_jobs) {
  PortPlan plan;
  std::string error;
  CHECK(read(kPlan, &plan, &error));
  const auto& pairs = plan.pairs("10.0.0.2", "10.1.0.2");
  CHECK_EQUAL(pairs.size(), std::size_t{3});
  CHECK_EQUAL(pairs[1].here, 20'003);
  CHECK_EQUAL(pairs[1].there, 20'002);
  CHECK_EQUAL(pairs[2].here, 30'000);
  CHECK(plan.pairs("10.1.0.2", "10.0.0.2").empty());
  CHECK(plan.pairs("10.9.0.2", "10.0.0.2").empty());
}

TEST(port_plan__a_truncated_file_is_refused_at_every_length) {
  const std::string whole = kPlan;
  PortPlan plan;
  std::string error;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CHECK(!read(whole.substr(0, length), &plan, &error));
    CHECK(plan.empty());
    CHECK(!error.empty() && error.find('\n') == std::string::npos);
  }
}

TEST(port_plan__wrong_content_is_refused) {
  PortPlan plan;
  std::string error;
  for (const char* text :
       {"[]", "{}", R"({"weft_plan":2,"jobs":{}})", R"({"weft_plan":1,"jobs":{"a":[{"ports":[[0,1]]}]}})",
        R"({"weft_plan":1,"jobs":{"a":[{"ports":[[1,2,3]]}]}})",
        R"({"weft_plan":1,"jobs":{"a":[{"ports":[[1,65536]]}]}})", R"({"weft_plan":1,"jobs":{}} x)"}) {
    CHECK(!read(text, &plan, &error));
    CHECK(plan.empty());
  }
  CHECK(!read(R"({"weft_plan":1,"x":)" + std::string(100'000, '['), &plan, &error));
  CHECK(!plan.read("/nowhere/plan.json", &error));
  CHECK_EQUAL(error, std::string("No such file or directory"));
}
