// Tests the memory that two processes share: its size is sealed, and memory without that is refused.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "native/local/peer_memory.h"
#include "native/local/segment.h"
#include "tests/native/check.h"

namespace {

using namespace weft::local;

}  // namespace

TEST(segment__cannot_be_shrunk_and_both_mappings_agree) {
  int descriptor = -1;
  std::string error;
  const auto made = Segment::make(&descriptor, &error);
  CHECK(made != nullptr);
  CHECK_EQUAL(::ftruncate(descriptor, 4096), -1);
  const auto adopted = Segment::adopt(::dup(descriptor), &error);
  CHECK(adopted != nullptr);
  made->shared().sides[0].wants.store(5);
  CHECK_EQUAL(adopted->shared().sides[0].wants.load(), 5u);
  ::close(descriptor);
  made->part();
  made->shared().sides[0].wants.store(6);
  CHECK_EQUAL(adopted->shared().sides[0].wants.load(), 5u);
}

TEST(segment__memory_that_may_shrink_or_is_of_another_size_is_refused) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  struct Case {
    off_t bytes;
    int seals;
  };
  for (const Case& each : {Case{sizeof(Shared), 0}, Case{4096, kSeals}, Case{sizeof(Shared) + 4096, kSeals},
                           Case{sizeof(Shared), kSeals /* sealed, of another layout */}}) {
    const int descriptor = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQUAL(::ftruncate(descriptor, each.bytes), 0);
    if (each.seals != 0) CHECK_EQUAL(::fcntl(descriptor, F_ADD_SEALS, each.seals), 0);
    std::string error;
    CHECK(Segment::adopt(descriptor, &error) == nullptr);
    CHECK(!error.empty());
  }
}

TEST(peer_memory__is_read_only_with_the_right_mark) {
  int descriptor = -1;
  std::string error;
  const auto made = Segment::make(&descriptor, &error);
  ::close(descriptor);
  Side& side = made->shared().sides[0];
  const Mark& mark = own_mark();
  side.mark_address.store(reinterpret_cast<std::uintptr_t>(mark.words.data()));
  side.mark[0].store(mark.words[0]);
  side.mark[1].store(mark.words[1]);
  const int word = 77;
  int copy = 0;
  PeerMemory memory(::getpid());
  CHECK(memory.open(side));
  CHECK(memory.copy(&copy, reinterpret_cast<std::uintptr_t>(&word), sizeof word) == PeerMemory::Copied::whole);
  CHECK_EQUAL(copy, 77);
  CHECK(memory.copy(&copy, 8, sizeof copy) == PeerMemory::Copied::unreadable);  // no memory is there
  side.mark[1].store(~mark.words[1]);                                           // another process, or another program
  PeerMemory other(::getpid());
  CHECK(!other.open(side));
  PeerMemory unseen(0);
  CHECK(!unseen.open(side));
}
