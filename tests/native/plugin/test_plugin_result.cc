// Tests the mapping from statuses to NCCL results: each status has a result, and no failure maps to success.
#include "native/plugin/result.h"
#include "tests/native/check.h"

using weft::Status;
using weft::nccl::Result;
using weft::nccl::result_of;

TEST(plugin_result__every_status_has_a_result) {
#define WEFT_VISIT(name, code, text)                     \
  CHECK(result_of(Status::name) != Result::in_progress); \
  CHECK((result_of(Status::name) == Result::success) ==  \
        (Status::name == Status::ok || Status::name == Status::would_block));
  WEFT_STATUS_TABLE(WEFT_VISIT)
#undef WEFT_VISIT
}

TEST(plugin_result__who_is_to_blame) {
  CHECK_EQUAL(result_of(Status::peer_dead), Result::remote_error);
  CHECK_EQUAL(result_of(Status::message_too_long), Result::invalid_usage);
  CHECK_EQUAL(result_of(static_cast<Status>(-1)), Result::internal_error);
}
