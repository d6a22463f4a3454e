// The functions of libibverbs that we call, found at run time: without the library there is no verbs datapath, and
// nothing else is missing. What verbs.h defines inline (posting, polling) needs no entry: it goes through the context.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::datapath {

// Each entry has the name and the type of its function.
// clang-format off
#define WEFT_IBV_FUNCTIONS(X)                                                                                         \
  X(get_device_list) X(free_device_list) X(get_device_name) X(open_device) X(close_device) X(query_device)            \
  X(query_gid) X(alloc_pd) X(dealloc_pd) X(dereg_mr) X(create_comp_channel) X(destroy_comp_channel) X(create_cq)      \
  X(destroy_cq) X(get_cq_event) X(ack_cq_events) X(create_srq) X(destroy_srq) X(create_qp) X(modify_qp) X(query_qp)   \
  X(destroy_qp) X(create_ah) X(destroy_ah) X(get_async_event) X(ack_async_event) X(wc_status_str) X(event_type_str)
// clang-format on

struct Ibv {
#define WEFT_IBV_POINTER(name) decltype(&::ibv_##name) name = nullptr;
  WEFT_IBV_FUNCTIONS(WEFT_IBV_POINTER)
#undef WEFT_IBV_POINTER
  // Macros of verbs.h hide these two: their symbols' own types.
  struct ibv_mr* (*reg_mr)(struct ibv_pd*, void*, std::size_t, int) = nullptr;
  // Null where the library is older than they are.
  struct ibv_mr* (*reg_mr_iova2)(struct ibv_pd*, void*, std::size_t, std::uint64_t, unsigned int) = nullptr;
  struct ibv_mr* (*reg_dmabuf_mr)(struct ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int) = nullptr;
  int (*query_port)(struct ibv_context*, std::uint8_t, struct ibv_port_attr*) = nullptr;
  // What a provider says of itself that is no NIC, and which sysfs does not know: it exports weft_software_provider.
  // Empty: libibverbs.
  std::string software;
};

// The library, loaded once for a name: empty for libibverbs, "softverbs" for the one that is installed with us, or a
// file. Null with `error` saying what to do.
const Ibv* load_ibv(const std::string& name, std::string* error);

}  // namespace weft::datapath
