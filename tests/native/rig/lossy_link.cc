// Faults apply to each datagram of a burst separately. All random numbers come from one generator in a fixed order, so
// that a seed determines a run.
#include "tests/native/rig/lossy_link.h"

#include <algorithm>

namespace weft::sim {
namespace {

bool later(const std::unique_ptr<Arrival>& a, const std::unique_ptr<Arrival>& b) noexcept {
  return a->at_ns != b->at_ns ? a->at_ns > b->at_ns : a->order > b->order;
}

std::unique_ptr<Arrival> copy_of(const Arrival& arrival) { return std::make_unique<Arrival>(arrival); }

}  // namespace

LossyLink::LossyLink(u64 seed, const LinkFaults& faults, std::vector<PathOutage> outages, std::vector<SizeLimit> limits)
    : random_(seed), faults_(faults), outages_(std::move(outages)), limits_(std::move(limits)) {}

bool LossyLink::is_too_long(i64 now_ns, int from, u8 path, std::size_t bytes) const noexcept {
  return std::any_of(limits_.begin(), limits_.end(), [&](const SizeLimit& limit) {
    return limit.path == path && (limit.from < 0 || limit.from == from) && bytes > limit.bytes_max &&
           now_ns >= limit.from_ns && now_ns < limit.until_ns;
  });
}

bool LossyLink::is_out(i64 now_ns, u8 path) const noexcept {
  return std::any_of(outages_.begin(), outages_.end(), [&](const PathOutage& outage) {
    return outage.path == path && now_ns >= outage.from_ns && now_ns < outage.until_ns;
  });
}

void LossyLink::push(std::unique_ptr<Arrival> arrival) {
  arrival->order = order_++;
  queue_.push_back(std::move(arrival));
  std::push_heap(queue_.begin(), queue_.end(), later);
}

std::unique_ptr<Arrival> LossyLink::poll(i64 now_ns) {
  if (queue_.empty() || queue_.front()->at_ns > now_ns) return nullptr;
  std::pop_heap(queue_.begin(), queue_.end(), later);
  std::unique_ptr<Arrival> arrival = std::move(queue_.back());
  queue_.pop_back();
  ++counters_.delivered;
  return arrival;
}

void LossyLink::send(i64 now_ns, int from, const core::TxBurst& burst) {
  for (std::size_t i = 0; i < burst.count; ++i) {
    offer(now_ns, from, burst.path, burst.header(i), burst.header_bytes, burst.payload[i]);
  }
}

void LossyLink::settle(int from) {
  for (const std::unique_ptr<Arrival>& arrival : queue_) arrival->settled = arrival->settled || arrival->to != from;
  if (kept_ != nullptr) kept_->settled = kept_->settled || kept_->to != from;
}

void LossyLink::offer(i64 now_ns, int from, u8 path, const u8* header, std::size_t header_bytes,
                      core::Payload payload) {
  ++counters_.sent;
  const bool is_data = header[3] == static_cast<u8>(wire::Type::data);
  i64 leaves_ns = now_ns;
  if (faults_.bytes_per_s > 0) {
    i64& busy_ns = busy_until_ns_[static_cast<std::size_t>(from)][path];
    const auto bytes = static_cast<i64>(header_bytes + payload.bytes);
    leaves_ns = busy_ns = std::max(busy_ns, now_ns) + bytes * 1'000'000'000 / faults_.bytes_per_s;
  }
  if (is_out(now_ns, path)) {
    ++counters_.outage_drops;
    counters_.lost_data += is_data ? 1 : 0;
    return;
  }
  if (is_too_long(now_ns, from, path, header_bytes + payload.bytes)) {
    ++counters_.too_long;
    counters_.lost_data += is_data ? 1 : 0;
    return;
  }
  if (chance(faults_.loss)) {
    ++counters_.lost;
    counters_.lost_data += is_data ? 1 : 0;
    return;
  }
  auto arrival = std::make_unique<Arrival>();
  arrival->to = 1 - from;
  arrival->path = path;
  arrival->header.assign(header, header + header_bytes);
  if (payload.bytes != 0) arrival->payload.assign(payload.data, payload.data + payload.bytes);
  arrival->source = payload;
  arrival->at_ns = leaves_ns + faults_.delay_ns;
  if (faults_.jitter_ns > 0) arrival->at_ns += static_cast<i64>(random_.next() % static_cast<u64>(faults_.jitter_ns));
  if (chance(faults_.mark)) {
    arrival->congestion_experienced = true;
    ++counters_.marked;
  }
  if (chance(faults_.reorder)) {
    arrival->at_ns += static_cast<i64>(random_.next() % static_cast<u64>(faults_.reorder_ns_max));
    ++counters_.reordered;
  }
  if (chance(faults_.duplicate)) {
    auto twin = copy_of(*arrival);
    twin->at_ns += static_cast<i64>(random_.next() % static_cast<u64>(faults_.reorder_ns_max));
    ++counters_.duplicated;
    push(std::move(twin));
  }
  maybe_replay(now_ns, *arrival);
  maybe_stray(now_ns, arrival->to, path);
  if (chance(faults_.corrupt)) {
    corrupt(arrival.get());
    counters_.lost_data += is_data ? 1 : 0;
  }
  push(std::move(arrival));
}

void LossyLink::corrupt(Arrival* arrival) {
  const std::size_t bits = 8 * (arrival->header.size() + arrival->payload.size());
  const std::size_t bit = random_.next() % bits;
  const std::size_t byte = bit / 8;
  const auto mask = static_cast<u8>(1u << (bit % 8));
  if (byte < arrival->header.size()) {
    arrival->header[byte] = static_cast<u8>(arrival->header[byte] ^ mask);
  } else {
    u8& target = arrival->payload[byte - arrival->header.size()];
    target = static_cast<u8>(target ^ mask);
  }
  arrival->corrupted = true;
  ++counters_.corrupted;
}

void LossyLink::maybe_replay(i64 now_ns, const Arrival& arrival) {
  if (kept_ != nullptr && chance(faults_.replay)) {
    auto again = copy_of(*kept_);
    again->at_ns = now_ns + static_cast<i64>(random_.next() % static_cast<u64>(faults_.replay_ns_max));
    ++counters_.replayed;
    push(std::move(again));
  }
  if (faults_.replay > 0 && (kept_ == nullptr || chance(0.05))) kept_ = copy_of(arrival);
}

// Delivers random bytes. Half of them begin like a valid packet, and so pass more of the receiver's checks.
void LossyLink::maybe_stray(i64 now_ns, int to, u8 path) {
  if (!chance(faults_.stray)) return;
  auto stray = std::make_unique<Arrival>();
  stray->to = to;
  stray->path = path;
  stray->at_ns = now_ns + faults_.delay_ns;
  stray->header.resize(1 + random_.next() % 200);
  for (u8& byte : stray->header) byte = static_cast<u8>(random_.next());
  if (stray->header.size() > 4 && chance(0.5)) {
    stray->header[0] = static_cast<u8>(wire::kMagic & 0xFF);
    stray->header[1] = static_cast<u8>(wire::kMagic >> 8);
    stray->header[2] = wire::kVersion;
    stray->header[3] = static_cast<u8>(1 + random_.next() % 9);
  }
  ++counters_.strays;
  push(std::move(stray));
}

}  // namespace weft::sim
