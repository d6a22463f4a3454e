// Compares native/datapath/verbs/verbs_abi.h with the header of the installed libibverbs: sizes, offsets and values.
#if __has_include(<infiniband/verbs.h>)

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// Macros of the system's header with the names of functions.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace weft_abi {
#include "native/datapath/verbs/verbs_abi.h"
}  // namespace weft_abi

#include "tests/native/check.h"

namespace {

#define CHECK_STRUCT(type)                             \
  CHECK_EQUAL(sizeof(weft_abi::type), sizeof(::type)); \
  CHECK_EQUAL(alignof(weft_abi::type), alignof(::type))
#define CHECK_FIELD(type, field)                                         \
  CHECK_EQUAL(offsetof(weft_abi::type, field), offsetof(::type, field)); \
  CHECK_EQUAL(sizeof(weft_abi::type::field), sizeof(::type::field))
#define CHECK_VALUE(name) CHECK_EQUAL(static_cast<long>(weft_abi::name), static_cast<long>(::name))

}  // namespace

TEST(verbs_abi__has_the_layout_of_the_device_and_its_functions) {
  CHECK_STRUCT(ibv_gid);
  CHECK_STRUCT(ibv_device);
  CHECK_FIELD(ibv_device, node_type);
  CHECK_FIELD(ibv_device, transport_type);
  CHECK_FIELD(ibv_device, name);
  CHECK_FIELD(ibv_device, dev_name);
  CHECK_FIELD(ibv_device, dev_path);
  CHECK_FIELD(ibv_device, ibdev_path);
  CHECK_STRUCT(ibv_context_ops);
  CHECK_FIELD(ibv_context_ops, alloc_mw);
  CHECK_FIELD(ibv_context_ops, bind_mw);
  CHECK_FIELD(ibv_context_ops, dealloc_mw);
  CHECK_FIELD(ibv_context_ops, poll_cq);
  CHECK_FIELD(ibv_context_ops, req_notify_cq);
  CHECK_FIELD(ibv_context_ops, post_srq_recv);
  CHECK_FIELD(ibv_context_ops, post_send);
  CHECK_FIELD(ibv_context_ops, post_recv);
  CHECK_STRUCT(ibv_context);
  CHECK_FIELD(ibv_context, device);
  CHECK_FIELD(ibv_context, ops);
  CHECK_FIELD(ibv_context, cmd_fd);
  CHECK_FIELD(ibv_context, async_fd);
  CHECK_FIELD(ibv_context, num_comp_vectors);
  CHECK_FIELD(ibv_context, mutex);
  CHECK_FIELD(ibv_context, abi_compat);
}

TEST(verbs_abi__has_the_layout_of_what_is_queried) {
  CHECK_STRUCT(ibv_device_attr);
  CHECK_FIELD(ibv_device_attr, fw_ver);
  CHECK_FIELD(ibv_device_attr, node_guid);
  CHECK_FIELD(ibv_device_attr, max_mr_size);
  CHECK_FIELD(ibv_device_attr, vendor_id);
  CHECK_FIELD(ibv_device_attr, max_qp);
  CHECK_FIELD(ibv_device_attr, max_qp_wr);
  CHECK_FIELD(ibv_device_attr, device_cap_flags);
  CHECK_FIELD(ibv_device_attr, max_sge);
  CHECK_FIELD(ibv_device_attr, max_cqe);
  CHECK_FIELD(ibv_device_attr, max_mr);
  CHECK_FIELD(ibv_device_attr, atomic_cap);
  CHECK_FIELD(ibv_device_attr, max_mw);
  CHECK_FIELD(ibv_device_attr, max_ah);
  CHECK_FIELD(ibv_device_attr, max_srq);
  CHECK_FIELD(ibv_device_attr, max_srq_wr);
  CHECK_FIELD(ibv_device_attr, max_pkeys);
  CHECK_FIELD(ibv_device_attr, phys_port_cnt);
  CHECK_STRUCT(ibv_port_attr);
  CHECK_FIELD(ibv_port_attr, state);
  CHECK_FIELD(ibv_port_attr, max_mtu);
  CHECK_FIELD(ibv_port_attr, active_mtu);
  CHECK_FIELD(ibv_port_attr, gid_tbl_len);
  CHECK_FIELD(ibv_port_attr, port_cap_flags);
  CHECK_FIELD(ibv_port_attr, max_msg_sz);
  CHECK_FIELD(ibv_port_attr, lid);
  CHECK_FIELD(ibv_port_attr, sm_lid);
  CHECK_FIELD(ibv_port_attr, active_width);
  CHECK_FIELD(ibv_port_attr, active_speed);
  CHECK_FIELD(ibv_port_attr, link_layer);
  CHECK_FIELD(ibv_port_attr, port_cap_flags2);
  CHECK_STRUCT(ibv_async_event);
  CHECK_FIELD(ibv_async_event, element);
  CHECK_FIELD(ibv_async_event, event_type);
}

TEST(verbs_abi__has_the_layout_of_objects) {
  CHECK_STRUCT(ibv_pd);
  CHECK_FIELD(ibv_pd, context);
  CHECK_STRUCT(ibv_ah);
  CHECK_STRUCT(ibv_mr);
  CHECK_FIELD(ibv_mr, addr);
  CHECK_FIELD(ibv_mr, length);
  CHECK_FIELD(ibv_mr, lkey);
  CHECK_FIELD(ibv_mr, rkey);
  CHECK_STRUCT(ibv_mw);
  CHECK_FIELD(ibv_mw, context);
  CHECK_FIELD(ibv_mw, rkey);
  CHECK_FIELD(ibv_mw, type);
  CHECK_STRUCT(ibv_comp_channel);
  CHECK_FIELD(ibv_comp_channel, fd);
  CHECK_STRUCT(ibv_cq);
  CHECK_FIELD(ibv_cq, context);
  CHECK_FIELD(ibv_cq, channel);
  CHECK_FIELD(ibv_cq, cq_context);
  CHECK_FIELD(ibv_cq, cqe);
  CHECK_FIELD(ibv_cq, mutex);
  CHECK_FIELD(ibv_cq, comp_events_completed);
  CHECK_STRUCT(ibv_srq);
  CHECK_FIELD(ibv_srq, context);
  CHECK_FIELD(ibv_srq, pd);
  CHECK_FIELD(ibv_srq, events_completed);
  CHECK_STRUCT(ibv_qp);
  CHECK_FIELD(ibv_qp, context);
  CHECK_FIELD(ibv_qp, send_cq);
  CHECK_FIELD(ibv_qp, recv_cq);
  CHECK_FIELD(ibv_qp, srq);
  CHECK_FIELD(ibv_qp, qp_num);
  CHECK_FIELD(ibv_qp, state);
  CHECK_FIELD(ibv_qp, qp_type);
  CHECK_FIELD(ibv_qp, events_completed);
}

TEST(verbs_abi__has_the_layout_of_attributes) {
  CHECK_STRUCT(ibv_srq_init_attr);
  CHECK_FIELD(ibv_srq_init_attr, attr);
  CHECK_STRUCT(ibv_srq_attr);
  CHECK_FIELD(ibv_srq_attr, max_sge);
  CHECK_STRUCT(ibv_qp_cap);
  CHECK_FIELD(ibv_qp_cap, max_inline_data);
  CHECK_STRUCT(ibv_qp_init_attr);
  CHECK_FIELD(ibv_qp_init_attr, send_cq);
  CHECK_FIELD(ibv_qp_init_attr, srq);
  CHECK_FIELD(ibv_qp_init_attr, cap);
  CHECK_FIELD(ibv_qp_init_attr, qp_type);
  CHECK_FIELD(ibv_qp_init_attr, sq_sig_all);
  CHECK_STRUCT(ibv_global_route);
  CHECK_FIELD(ibv_global_route, flow_label);
  CHECK_FIELD(ibv_global_route, sgid_index);
  CHECK_FIELD(ibv_global_route, hop_limit);
  CHECK_FIELD(ibv_global_route, traffic_class);
  CHECK_STRUCT(ibv_ah_attr);
  CHECK_FIELD(ibv_ah_attr, dlid);
  CHECK_FIELD(ibv_ah_attr, sl);
  CHECK_FIELD(ibv_ah_attr, is_global);
  CHECK_FIELD(ibv_ah_attr, port_num);
  CHECK_STRUCT(ibv_qp_attr);
  CHECK_FIELD(ibv_qp_attr, path_mtu);
  CHECK_FIELD(ibv_qp_attr, qkey);
  CHECK_FIELD(ibv_qp_attr, dest_qp_num);
  CHECK_FIELD(ibv_qp_attr, qp_access_flags);
  CHECK_FIELD(ibv_qp_attr, cap);
  CHECK_FIELD(ibv_qp_attr, ah_attr);
  CHECK_FIELD(ibv_qp_attr, pkey_index);
  CHECK_FIELD(ibv_qp_attr, max_rd_atomic);
  CHECK_FIELD(ibv_qp_attr, max_dest_rd_atomic);
  CHECK_FIELD(ibv_qp_attr, min_rnr_timer);
  CHECK_FIELD(ibv_qp_attr, port_num);
  CHECK_FIELD(ibv_qp_attr, timeout);
  CHECK_FIELD(ibv_qp_attr, retry_cnt);
  CHECK_FIELD(ibv_qp_attr, rnr_retry);
  CHECK_FIELD(ibv_qp_attr, rate_limit);
}

TEST(verbs_abi__has_the_layout_of_work_requests_and_completions) {
  CHECK_STRUCT(ibv_sge);
  CHECK_FIELD(ibv_sge, length);
  CHECK_FIELD(ibv_sge, lkey);
  CHECK_STRUCT(ibv_recv_wr);
  CHECK_FIELD(ibv_recv_wr, sg_list);
  CHECK_FIELD(ibv_recv_wr, num_sge);
  CHECK_STRUCT(ibv_send_wr);
  CHECK_FIELD(ibv_send_wr, next);
  CHECK_FIELD(ibv_send_wr, sg_list);
  CHECK_FIELD(ibv_send_wr, opcode);
  CHECK_FIELD(ibv_send_wr, send_flags);
  CHECK_FIELD(ibv_send_wr, imm_data);
  CHECK_FIELD(ibv_send_wr, wr.rdma.remote_addr);
  CHECK_FIELD(ibv_send_wr, wr.rdma.rkey);
  CHECK_FIELD(ibv_send_wr, wr.atomic.rkey);
  CHECK_FIELD(ibv_send_wr, wr.ud.ah);
  CHECK_FIELD(ibv_send_wr, wr.ud.remote_qpn);
  CHECK_FIELD(ibv_send_wr, wr.ud.remote_qkey);
  CHECK_FIELD(ibv_send_wr, bind_mw.mw);
  CHECK_FIELD(ibv_send_wr, bind_mw.bind_info);
  CHECK_STRUCT(ibv_mw_bind_info);
  CHECK_FIELD(ibv_mw_bind_info, mw_access_flags);
  CHECK_STRUCT(ibv_mw_bind);
  CHECK_FIELD(ibv_mw_bind, send_flags);
  CHECK_FIELD(ibv_mw_bind, bind_info);
  CHECK_STRUCT(ibv_wc);
  CHECK_FIELD(ibv_wc, status);
  CHECK_FIELD(ibv_wc, opcode);
  CHECK_FIELD(ibv_wc, byte_len);
  CHECK_FIELD(ibv_wc, imm_data);
  CHECK_FIELD(ibv_wc, qp_num);
  CHECK_FIELD(ibv_wc, src_qp);
  CHECK_FIELD(ibv_wc, wc_flags);
  CHECK_FIELD(ibv_wc, dlid_path_bits);
}

TEST(verbs_abi__has_the_values_of_constants) {
  CHECK_VALUE(IBV_NODE_CA);
  CHECK_VALUE(IBV_TRANSPORT_IB);
  CHECK_VALUE(IBV_PORT_ACTIVE);
  CHECK_VALUE(IBV_MW_TYPE_1);
  CHECK_VALUE(IBV_MW_TYPE_2);
  CHECK_VALUE(IBV_QPT_RC);
  CHECK_VALUE(IBV_QPT_UC);
  CHECK_VALUE(IBV_QPT_UD);
  CHECK_VALUE(IBV_LINK_LAYER_INFINIBAND);
  CHECK_VALUE(IBV_LINK_LAYER_ETHERNET);
  CHECK_VALUE(IBV_DEVICE_MEM_WINDOW);
  CHECK_VALUE(IBV_MTU_256);
  CHECK_VALUE(IBV_MTU_512);
  CHECK_VALUE(IBV_MTU_1024);
  CHECK_VALUE(IBV_MTU_2048);
  CHECK_VALUE(IBV_MTU_4096);
  CHECK_VALUE(IBV_QPS_RESET);
  CHECK_VALUE(IBV_QPS_INIT);
  CHECK_VALUE(IBV_QPS_RTR);
  CHECK_VALUE(IBV_QPS_RTS);
  CHECK_VALUE(IBV_QPS_ERR);
  CHECK_VALUE(IBV_EVENT_CQ_ERR);
  CHECK_VALUE(IBV_EVENT_QP_FATAL);
  CHECK_VALUE(IBV_EVENT_QP_REQ_ERR);
  CHECK_VALUE(IBV_EVENT_QP_ACCESS_ERR);
  CHECK_VALUE(IBV_EVENT_DEVICE_FATAL);
  CHECK_VALUE(IBV_EVENT_PORT_ACTIVE);
  CHECK_VALUE(IBV_EVENT_PORT_ERR);
  CHECK_VALUE(IBV_EVENT_QP_LAST_WQE_REACHED);
  CHECK_VALUE(IBV_WC_SUCCESS);
  CHECK_VALUE(IBV_WC_LOC_LEN_ERR);
  CHECK_VALUE(IBV_WC_LOC_PROT_ERR);
  CHECK_VALUE(IBV_WC_WR_FLUSH_ERR);
  CHECK_VALUE(IBV_WC_MW_BIND_ERR);
  CHECK_VALUE(IBV_WC_REM_INV_REQ_ERR);
  CHECK_VALUE(IBV_WC_REM_ACCESS_ERR);
  CHECK_VALUE(IBV_WC_RETRY_EXC_ERR);
  CHECK_VALUE(IBV_WC_RNR_RETRY_EXC_ERR);
  CHECK_VALUE(IBV_WC_SEND);
  CHECK_VALUE(IBV_WC_RDMA_WRITE);
  CHECK_VALUE(IBV_WC_BIND_MW);
  CHECK_VALUE(IBV_WC_RECV);
  CHECK_VALUE(IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK_VALUE(IBV_WR_RDMA_WRITE);
  CHECK_VALUE(IBV_WR_RDMA_WRITE_WITH_IMM);
  CHECK_VALUE(IBV_WR_SEND);
  CHECK_VALUE(IBV_WR_SEND_WITH_IMM);
  CHECK_VALUE(IBV_WR_RDMA_READ);
  CHECK_VALUE(IBV_WC_GRH);
  CHECK_VALUE(IBV_WC_WITH_IMM);
  CHECK_VALUE(IBV_SEND_SIGNALED);
  CHECK_VALUE(IBV_SEND_SOLICITED);
  CHECK_VALUE(IBV_SEND_INLINE);
  CHECK_VALUE(IBV_ACCESS_LOCAL_WRITE);
  CHECK_VALUE(IBV_ACCESS_REMOTE_WRITE);
  CHECK_VALUE(IBV_ACCESS_REMOTE_ATOMIC);
  CHECK_VALUE(IBV_ACCESS_MW_BIND);
  CHECK_VALUE(IBV_ACCESS_RELAXED_ORDERING);
  CHECK_VALUE(IBV_QP_STATE);
  CHECK_VALUE(IBV_QP_ACCESS_FLAGS);
  CHECK_VALUE(IBV_QP_PKEY_INDEX);
  CHECK_VALUE(IBV_QP_PORT);
  CHECK_VALUE(IBV_QP_QKEY);
  CHECK_VALUE(IBV_QP_AV);
  CHECK_VALUE(IBV_QP_PATH_MTU);
  CHECK_VALUE(IBV_QP_TIMEOUT);
  CHECK_VALUE(IBV_QP_RETRY_CNT);
  CHECK_VALUE(IBV_QP_RNR_RETRY);
  CHECK_VALUE(IBV_QP_RQ_PSN);
  CHECK_VALUE(IBV_QP_MAX_QP_RD_ATOMIC);
  CHECK_VALUE(IBV_QP_MIN_RNR_TIMER);
  CHECK_VALUE(IBV_QP_SQ_PSN);
  CHECK_VALUE(IBV_QP_MAX_DEST_RD_ATOMIC);
  CHECK_VALUE(IBV_QP_DEST_QPN);
}

#else

#include <cstdio>

int main() {
  std::puts("skipped: no infiniband/verbs.h to compare with: apt-get install libibverbs-dev");
  return 77;
}

#endif
