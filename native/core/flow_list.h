// The flows of one peer, in the order in which they were opened. The list is intrusive, so that a peer's memory and the
// time to visit its flows depend on the number of the peer's own flows, not on that of all flows.
#pragma once

namespace weft::core {

struct Flow;

// A flow's neighbours in the list of its peer's flows.
struct FlowLink {
  Flow* previous = nullptr;
  Flow* next = nullptr;
};

class FlowList {
 public:
  Flow* first() const noexcept { return first_; }
  void add(Flow* flow) noexcept;
  void remove(Flow* flow) noexcept;

 private:
  Flow* first_ = nullptr;
  Flow* last_ = nullptr;
};

}  // namespace weft::core
