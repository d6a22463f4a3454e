// Encodes policy decisions as entries of a recording. This is also the definition of the format of a recording file
// after its magic. Memory is allocated only at construction.
//
// Numbers are little-endian, and the size of every entry is a multiple of 8 bytes. An entry begins with 16 bytes:
//   u32 bytes (head included), u8 type, u8 family, u8 hook, u8 status, u32 owner, u16 path_count, u16 policy
// type 1, a policy: u32 event_bytes, u32 result_bytes, u32 params_bytes, u32 0, name[48], sha256[72], params
// type 2, a decision: the event and the result of the hook, and for path policies path_count path heads (24
// bytes each); path_count is the number of the policy's paths, or 0 in families without paths
// type 3, a gap: u64 number of decisions that were dropped for lack of room
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "native/core/trace.h"

namespace weft::core {

inline constexpr char kRecordingMagic[8] = {'w', 'e', 'f', 't', 'r', 'e', 'c', '2'};

struct RecordingEntry {
  enum Type : u8 { policy = 1, decision = 2, gap = 3 };
  u32 bytes = 0;
  u8 type = 0, family = 0, hook = 0, status = 0;
  u32 owner = 0;
  u16 path_count = 0;
  u16 policy_id = 0;
};
static_assert(sizeof(RecordingEntry) == 16);

class DecisionEncoder {
 public:
  // `owner_tag` is added to each Decision::owner (a flow or peer index), so that several stacks can write into one
  // recording.
  explicit DecisionEncoder(u32 owner_tag);

  // Returns the entries of one decision, valid until the next call. If the caller cannot store them, it must call
  // drop(), so that a policy entry among them is made again.
  std::span<const std::byte> encode(const Decision& decision) noexcept;
  void drop() noexcept;
  std::span<const std::byte> encode_gap(u64 decisions) noexcept;

 private:
  struct Known {
    const policy::Descriptor* descriptor = nullptr;
    u16 id = 0;
    std::array<std::byte, policy::kMaxRecordBytes> params;
  };
  static constexpr std::size_t kKnown = 16;  // number of policies that are remembered; a forgotten one gets a new entry
  static constexpr std::size_t kEntryBytesMax = sizeof(RecordingEntry) + 136 + policy::kMaxRecordBytes +
                                                sizeof(RecordingEntry) + 512 + kMaxPaths * sizeof(policy::PathHead);

  void add(const void* data, std::size_t bytes) noexcept {
    std::memcpy(scratch_.get() + used_, data, bytes);
    used_ += bytes;
  }
  u16 name_policy(const Decision& decision) noexcept;
  void add_head(RecordingEntry entry, std::size_t body_bytes) noexcept;

  std::unique_ptr<std::byte[]> scratch_;
  std::unique_ptr<std::array<Known, kKnown>> known_;
  std::size_t used_ = 0, next_known_ = 0;
  Known* named_now_ = nullptr;  // the policy for which the last encode() made a policy entry; null: none
  u32 owner_tag_;
  u16 last_id_ = 0;
};

// A recording in memory, for simulations.
class DecisionBuffer final : public TraceSink {
 public:
  // Several buffers may append to the same `out`. It grows up to `bytes_max`; further decisions are dropped and
  // counted.
  DecisionBuffer(std::vector<std::byte>* out, std::size_t bytes_max, u32 owner_tag)
      : encoder_(owner_tag), out_(out), bytes_max_(bytes_max) {}
  void on_decision(const Decision& decision) noexcept override {
    const std::span<const std::byte> entries = encoder_.encode(decision);
    if (out_->size() + entries.size() <= bytes_max_) {
      try {
        out_->insert(out_->end(), entries.begin(), entries.end());
        return;
      } catch (const std::bad_alloc&) {  // treated like a full buffer
      }
    }
    encoder_.drop();
    ++lost_;
  }
  // Appends the number of dropped decisions, if any. To be called once, at the end.
  void finish() {
    if (lost_ == 0) return;
    const std::span<const std::byte> gap = encoder_.encode_gap(lost_);
    out_->insert(out_->end(), gap.begin(), gap.end());
    lost_ = 0;
  }

 private:
  DecisionEncoder encoder_;
  std::vector<std::byte>* out_;
  std::size_t bytes_max_;
  u64 lost_ = 0;
};

}  // namespace weft::core
