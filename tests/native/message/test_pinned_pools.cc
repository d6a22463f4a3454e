// Tests pinned memory in several pools: which pool a run of memory is taken from, and that it returns to this pool.
#include "native/message/pinned_pools.h"
#include "tests/native/gpu_fixture.h"

using namespace weft::test;
namespace gpu = weft::gpu;

namespace {

constexpr std::size_t kGranule = gpu::kGranuleBytes;

struct Pools {
  Pools() {
    std::string error;
    copier = gpu::Copier::open(driver(), 0, &error);
    CHECK(copier != nullptr);
  }
  ~Pools() { pools.retire(&copier->shared()); }
  void add(std::size_t granules) {
    std::string error;
    pools.add(copier->shared().pool(granules * kGranule, kGranule, &error));
    CHECK_EQUAL(error, "");
  }
  std::unique_ptr<gpu::Copier> copier;
  PinnedPools pools;
};

}  // namespace

TEST(pinned_pools__without_a_pool_there_is_no_run) {
  Pools at;
  CHECK(at.pools.take(kGranule).begin == nullptr);
  CHECK_EQUAL(at.pools.bytes(), std::size_t{0});
}

TEST(pinned_pools__the_first_pool_with_room_is_used) {
  Pools at;
  at.add(2);
  at.add(4);
  CHECK_EQUAL(at.pools.bytes(), 6 * kGranule);
  const PinnedRun large = at.pools.take(3 * kGranule);  // only the second pool has three adjacent granules
  const PinnedRun small = at.pools.take(2 * kGranule);
  CHECK(large.begin != nullptr);
  CHECK(small.begin != nullptr);
  CHECK(large.pool != small.pool);
  CHECK_EQUAL(at.pools.lent_bytes(), 5 * kGranule);
  CHECK(at.pools.take(2 * kGranule).begin == nullptr);
  PinnedPools::give(small);
  PinnedPools::give(large);
  CHECK_EQUAL(at.pools.lent_bytes(), std::size_t{0});
}

TEST(pinned_pools__a_run_that_was_given_back_is_lent_again) {
  Pools at;
  at.add(1);
  const PinnedRun first = at.pools.take(kGranule);
  CHECK(at.pools.take(1).begin == nullptr);
  PinnedPools::give(first);
  const PinnedRun again = at.pools.take(1);
  CHECK(again.begin == first.begin);
  PinnedPools::give(again);
}
