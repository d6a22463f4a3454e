// The function table of libibverbs, which is loaded at run time; without the library, only the verbs datapath is
// unavailable. Functions that verbs.h defines inline (posting, polling) go through the device context and are not in
// the table.
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
  // verbs.h defines macros with the names of these two functions, so their types are spelled out here.
  struct ibv_mr* (*reg_mr)(struct ibv_pd*, void*, std::size_t, int) = nullptr;
  // Null if the installed library does not have this function yet.
  struct ibv_mr* (*reg_mr_iova2)(struct ibv_pd*, void*, std::size_t, std::uint64_t, unsigned int) = nullptr;
  struct ibv_mr* (*reg_dmabuf_mr)(struct ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int) = nullptr;
  int (*query_port)(struct ibv_context*, std::uint8_t, struct ibv_port_attr*) = nullptr;
  // What a software provider (a library that exports weft_software_provider, with devices that are not in sysfs) says
  // of itself, for messages. Empty: the library is libibverbs.
  std::string software;
};

// Returns the library's function table; a library is loaded once. `name`: empty for libibverbs, or a file. On failure
// returns null, with `error` saying what to do.
const Ibv* load_ibv(const std::string& name, std::string* error);

}  // namespace weft::datapath
