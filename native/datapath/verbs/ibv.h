// The function table of libibverbs, which is loaded at run time; without the library, only the verbs datapath is
// unavailable. Functions of the device's driver (posting, polling) go through its context and are not in the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "native/datapath/verbs/verbs_abi.h"

namespace weft::datapath {

// Each entry has the name and the type of its function.
// clang-format off
#define WEFT_IBV_FUNCTIONS(X)                                                                                         \
  X(get_device_list) X(free_device_list) X(get_device_name) X(open_device) X(close_device) X(query_device)            \
  X(query_port) X(query_gid) X(alloc_pd) X(dealloc_pd) X(reg_mr) X(dereg_mr) X(create_comp_channel) X(destroy_comp_channel) X(create_cq)      \
  X(destroy_cq) X(get_cq_event) X(ack_cq_events) X(create_srq) X(destroy_srq) X(create_qp) X(modify_qp) X(query_qp)   \
  X(destroy_qp) X(create_ah) X(destroy_ah) X(get_async_event) X(ack_async_event) X(wc_status_str) X(event_type_str)
// clang-format on

struct Ibv {
#define WEFT_IBV_POINTER(name) decltype(&::ibv_##name) name = nullptr;
  WEFT_IBV_FUNCTIONS(WEFT_IBV_POINTER)
#undef WEFT_IBV_POINTER
  // Null if the installed library does not have the function yet.
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2 = nullptr;
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr = nullptr;
  // What a software provider (a library that exports weft_software_provider, with devices that are not in sysfs) says
  // of itself, for messages. Empty: the library is libibverbs.
  std::string software;
};

// Returns the library's function table; a library is loaded once. `name`: empty for libibverbs, or a file. On failure
// returns null, with `error` saying what to do.
const Ibv* load_ibv(const std::string& name, std::string* error);

}  // namespace weft::datapath
