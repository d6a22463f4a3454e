// What weft uses of the binary interface of libibverbs.so.1: types, constants and functions under the names of its man
// pages (ibv_post_send(3) and others). It has been the same since rdma-core 15, and being here, a build needs no
// package of the system. tests/native/datapath/test_verbs_abi.cc compares it with the installed infiniband/verbs.h.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

// NOLINTBEGIN: the names, sizes and layouts are those of libibverbs.
// Enumerations that the library writes have a fixed type: a newer library may know values that are not here.
enum ibv_node_type : int { IBV_NODE_CA = 1 };
enum ibv_transport_type : int { IBV_TRANSPORT_IB = 0 };
enum ibv_atomic_cap : unsigned {};
enum ibv_mig_state : unsigned {};
enum ibv_port_state : unsigned { IBV_PORT_ACTIVE = 4 };
enum ibv_mw_type : unsigned { IBV_MW_TYPE_1 = 1, IBV_MW_TYPE_2 = 2 };
enum ibv_qp_type : unsigned { IBV_QPT_RC = 2, IBV_QPT_UC = 3, IBV_QPT_UD = 4 };
enum { IBV_LINK_LAYER_INFINIBAND = 1, IBV_LINK_LAYER_ETHERNET = 2 };
enum { IBV_DEVICE_MEM_WINDOW = 1 << 17 };

enum ibv_mtu : unsigned {
  IBV_MTU_256 = 1,
  IBV_MTU_512 = 2,
  IBV_MTU_1024 = 3,
  IBV_MTU_2048 = 4,
  IBV_MTU_4096 = 5,
};

enum ibv_qp_state : unsigned {
  IBV_QPS_RESET = 0,
  IBV_QPS_INIT = 1,
  IBV_QPS_RTR = 2,
  IBV_QPS_RTS = 3,
  IBV_QPS_ERR = 6,
};

enum ibv_event_type : unsigned {
  IBV_EVENT_CQ_ERR = 0,
  IBV_EVENT_QP_FATAL = 1,
  IBV_EVENT_QP_REQ_ERR = 2,
  IBV_EVENT_QP_ACCESS_ERR = 3,
  IBV_EVENT_DEVICE_FATAL = 8,
  IBV_EVENT_PORT_ACTIVE = 9,
  IBV_EVENT_PORT_ERR = 10,
  IBV_EVENT_QP_LAST_WQE_REACHED = 16,
};

enum ibv_wc_status : unsigned {
  IBV_WC_SUCCESS = 0,
  IBV_WC_LOC_LEN_ERR = 1,
  IBV_WC_LOC_PROT_ERR = 4,
  IBV_WC_WR_FLUSH_ERR = 5,
  IBV_WC_MW_BIND_ERR = 6,
  IBV_WC_REM_INV_REQ_ERR = 9,
  IBV_WC_REM_ACCESS_ERR = 10,
  IBV_WC_RETRY_EXC_ERR = 12,
  IBV_WC_RNR_RETRY_EXC_ERR = 13,
};

enum ibv_wc_opcode : unsigned {
  IBV_WC_SEND = 0,
  IBV_WC_RDMA_WRITE = 1,
  IBV_WC_BIND_MW = 5,
  IBV_WC_RECV = 128,
  IBV_WC_RECV_RDMA_WITH_IMM = 129,
};

enum ibv_wr_opcode : unsigned {
  IBV_WR_RDMA_WRITE = 0,
  IBV_WR_RDMA_WRITE_WITH_IMM = 1,
  IBV_WR_SEND = 2,
  IBV_WR_SEND_WITH_IMM = 3,
  IBV_WR_RDMA_READ = 4,
};

enum ibv_wc_flags { IBV_WC_GRH = 1 << 0, IBV_WC_WITH_IMM = 1 << 1 };
enum ibv_send_flags { IBV_SEND_SIGNALED = 1 << 1, IBV_SEND_SOLICITED = 1 << 2, IBV_SEND_INLINE = 1 << 3 };

enum ibv_access_flags {
  IBV_ACCESS_LOCAL_WRITE = 1 << 0,
  IBV_ACCESS_REMOTE_WRITE = 1 << 1,
  IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
  IBV_ACCESS_MW_BIND = 1 << 4,
  IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
};

enum ibv_qp_attr_mask {
  IBV_QP_STATE = 1 << 0,
  IBV_QP_ACCESS_FLAGS = 1 << 3,
  IBV_QP_PKEY_INDEX = 1 << 4,
  IBV_QP_PORT = 1 << 5,
  IBV_QP_QKEY = 1 << 6,
  IBV_QP_AV = 1 << 7,
  IBV_QP_PATH_MTU = 1 << 8,
  IBV_QP_TIMEOUT = 1 << 9,
  IBV_QP_RETRY_CNT = 1 << 10,
  IBV_QP_RNR_RETRY = 1 << 11,
  IBV_QP_RQ_PSN = 1 << 12,
  IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
  IBV_QP_MIN_RNR_TIMER = 1 << 15,
  IBV_QP_SQ_PSN = 1 << 16,
  IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
  IBV_QP_DEST_QPN = 1 << 20,
};

struct ibv_ah;
struct ibv_comp_channel;
struct ibv_context;
struct ibv_cq;
struct ibv_device;
struct ibv_mw;
struct ibv_mw_bind;
struct ibv_pd;
struct ibv_qp;
struct ibv_recv_wr;
struct ibv_send_wr;
struct ibv_srq;
struct ibv_wc;

// Addresses and keys of the network are in network byte order.
union ibv_gid {
  std::uint8_t raw[16];
  struct {
    std::uint64_t subnet_prefix;
    std::uint64_t interface_id;
  } global;
};

struct ibv_device {
  void* reserved_operations[2];
  ibv_node_type node_type;
  ibv_transport_type transport_type;
  char name[64];         // as in /sys/class/infiniband
  char dev_name[64];     // as in /dev/infiniband
  char dev_path[256];    // its folder in /sys/class/infiniband_verbs
  char ibdev_path[256];  // its folder in /sys/class/infiniband
};

// Functions of the device's driver. What is reserved was once called by programs older than libibverbs 1.1.
struct ibv_context_ops {
  void* reserved_before_alloc_mw[7];
  ibv_mw* (*alloc_mw)(ibv_pd* pd, ibv_mw_type type);
  int (*bind_mw)(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind);
  int (*dealloc_mw)(ibv_mw* mw);
  void* reserved_before_poll_cq[1];
  int (*poll_cq)(ibv_cq* cq, int count, ibv_wc* completions);
  int (*req_notify_cq)(ibv_cq* cq, int solicited_only);
  void* reserved_before_post_srq_recv[7];
  int (*post_srq_recv)(ibv_srq* srq, ibv_recv_wr* requests, ibv_recv_wr** bad);
  void* reserved_before_post_send[4];
  int (*post_send)(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** bad);
  int (*post_recv)(ibv_qp* qp, ibv_recv_wr* requests, ibv_recv_wr** bad);
  void* reserved_at_end[5];
};

struct ibv_context {
  ibv_device* device;
  ibv_context_ops ops;
  int cmd_fd;
  int async_fd;
  int num_comp_vectors;
  pthread_mutex_t mutex;
  void* abi_compat;
};

struct ibv_device_attr {
  char fw_ver[64];
  std::uint64_t node_guid;
  std::uint64_t sys_image_guid;
  std::uint64_t max_mr_size;
  std::uint64_t page_size_cap;
  std::uint32_t vendor_id;
  std::uint32_t vendor_part_id;
  std::uint32_t hw_ver;
  int max_qp;
  int max_qp_wr;
  unsigned device_cap_flags;
  int max_sge;
  int max_sge_rd;
  int max_cq;
  int max_cqe;
  int max_mr;
  int max_pd;
  int max_qp_rd_atom;
  int max_ee_rd_atom;
  int max_res_rd_atom;
  int max_qp_init_rd_atom;
  int max_ee_init_rd_atom;
  ibv_atomic_cap atomic_cap;
  int max_ee;
  int max_rdd;
  int max_mw;
  int max_raw_ipv6_qp;
  int max_raw_ethy_qp;
  int max_mcast_grp;
  int max_mcast_qp_attach;
  int max_total_mcast_qp_attach;
  int max_ah;
  int max_fmr;
  int max_map_per_fmr;
  int max_srq;
  int max_srq_wr;
  int max_srq_sge;
  std::uint16_t max_pkeys;
  std::uint8_t local_ca_ack_delay;
  std::uint8_t phys_port_cnt;
};

struct ibv_port_attr {
  ibv_port_state state;
  ibv_mtu max_mtu;
  ibv_mtu active_mtu;
  int gid_tbl_len;
  std::uint32_t port_cap_flags;
  std::uint32_t max_msg_sz;
  std::uint32_t bad_pkey_cntr;
  std::uint32_t qkey_viol_cntr;
  std::uint16_t pkey_tbl_len;
  std::uint16_t lid;
  std::uint16_t sm_lid;
  std::uint8_t lmc;
  std::uint8_t max_vl_num;
  std::uint8_t sm_sl;
  std::uint8_t subnet_timeout;
  std::uint8_t init_type_reply;
  std::uint8_t active_width;
  std::uint8_t active_speed;
  std::uint8_t phys_state;
  std::uint8_t link_layer;
  std::uint8_t flags;
  std::uint16_t port_cap_flags2;
};

struct ibv_pd {
  ibv_context* context;
  std::uint32_t handle;
};

struct ibv_mr {
  ibv_context* context;
  ibv_pd* pd;
  void* addr;
  std::size_t length;
  std::uint32_t handle;
  std::uint32_t lkey;
  std::uint32_t rkey;
};

struct ibv_mw {
  ibv_context* context;
  ibv_pd* pd;
  std::uint32_t rkey;
  std::uint32_t handle;
  ibv_mw_type type;
};

struct ibv_mw_bind_info {
  ibv_mr* mr;
  std::uint64_t addr;
  std::uint64_t length;
  unsigned mw_access_flags;
};

struct ibv_mw_bind {
  std::uint64_t wr_id;
  unsigned send_flags;
  ibv_mw_bind_info bind_info;
};

struct ibv_comp_channel {
  ibv_context* context;
  int fd;
  int refcnt;
};

struct ibv_cq {
  ibv_context* context;
  ibv_comp_channel* channel;
  void* cq_context;
  std::uint32_t handle;
  int cqe;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  std::uint32_t comp_events_completed;
  std::uint32_t async_events_completed;
};

struct ibv_srq {
  ibv_context* context;
  void* srq_context;
  ibv_pd* pd;
  std::uint32_t handle;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  std::uint32_t events_completed;
};

struct ibv_srq_attr {
  std::uint32_t max_wr;
  std::uint32_t max_sge;
  std::uint32_t srq_limit;
};

struct ibv_srq_init_attr {
  void* srq_context;
  ibv_srq_attr attr;
};

struct ibv_qp {
  ibv_context* context;
  void* qp_context;
  ibv_pd* pd;
  ibv_cq* send_cq;
  ibv_cq* recv_cq;
  ibv_srq* srq;
  std::uint32_t handle;
  std::uint32_t qp_num;
  ibv_qp_state state;
  ibv_qp_type qp_type;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  std::uint32_t events_completed;
};

struct ibv_qp_cap {
  std::uint32_t max_send_wr;
  std::uint32_t max_recv_wr;
  std::uint32_t max_send_sge;
  std::uint32_t max_recv_sge;
  std::uint32_t max_inline_data;
};

struct ibv_qp_init_attr {
  void* qp_context;
  ibv_cq* send_cq;
  ibv_cq* recv_cq;
  ibv_srq* srq;
  ibv_qp_cap cap;
  ibv_qp_type qp_type;
  int sq_sig_all;
};

struct ibv_global_route {
  ibv_gid dgid;
  std::uint32_t flow_label;
  std::uint8_t sgid_index;
  std::uint8_t hop_limit;
  std::uint8_t traffic_class;
};

struct ibv_ah_attr {
  ibv_global_route grh;
  std::uint16_t dlid;
  std::uint8_t sl;
  std::uint8_t src_path_bits;
  std::uint8_t static_rate;
  std::uint8_t is_global;
  std::uint8_t port_num;
};

struct ibv_ah {
  ibv_context* context;
  ibv_pd* pd;
  std::uint32_t handle;
};

struct ibv_qp_attr {
  ibv_qp_state qp_state;
  ibv_qp_state cur_qp_state;
  ibv_mtu path_mtu;
  ibv_mig_state path_mig_state;
  std::uint32_t qkey;
  std::uint32_t rq_psn;
  std::uint32_t sq_psn;
  std::uint32_t dest_qp_num;
  unsigned qp_access_flags;
  ibv_qp_cap cap;
  ibv_ah_attr ah_attr;
  ibv_ah_attr alt_ah_attr;
  std::uint16_t pkey_index;
  std::uint16_t alt_pkey_index;
  std::uint8_t en_sqd_async_notify;
  std::uint8_t sq_draining;
  std::uint8_t max_rd_atomic;
  std::uint8_t max_dest_rd_atomic;
  std::uint8_t min_rnr_timer;
  std::uint8_t port_num;
  std::uint8_t timeout;
  std::uint8_t retry_cnt;
  std::uint8_t rnr_retry;
  std::uint8_t alt_port_num;
  std::uint8_t alt_timeout;
  std::uint32_t rate_limit;
};

struct ibv_async_event {
  union {
    ibv_cq* cq;
    ibv_qp* qp;
    ibv_srq* srq;
    int port_num;
  } element;
  ibv_event_type event_type;
};

struct ibv_sge {
  std::uint64_t addr;
  std::uint32_t length;
  std::uint32_t lkey;
};

struct ibv_recv_wr {
  std::uint64_t wr_id;
  ibv_recv_wr* next;
  ibv_sge* sg_list;
  int num_sge;
};

struct ibv_send_wr {
  std::uint64_t wr_id;
  ibv_send_wr* next;
  ibv_sge* sg_list;
  int num_sge;
  ibv_wr_opcode opcode;
  unsigned send_flags;
  std::uint32_t imm_data;  // in network byte order
  union {
    struct {
      std::uint64_t remote_addr;
      std::uint32_t rkey;
    } rdma;
    struct {
      std::uint64_t remote_addr;
      std::uint64_t compare_add;
      std::uint64_t swap;
      std::uint32_t rkey;
    } atomic;
    struct {
      ibv_ah* ah;
      std::uint32_t remote_qpn;
      std::uint32_t remote_qkey;
    } ud;
  } wr;
  std::uint32_t reserved_for_xrc;
  struct {
    ibv_mw* mw;
    std::uint32_t rkey;
    ibv_mw_bind_info bind_info;
  } bind_mw;
};

struct ibv_wc {
  std::uint64_t wr_id;
  ibv_wc_status status;
  ibv_wc_opcode opcode;
  std::uint32_t vendor_err;
  std::uint32_t byte_len;
  std::uint32_t imm_data;  // in network byte order
  std::uint32_t qp_num;
  std::uint32_t src_qp;
  unsigned wc_flags;
  std::uint16_t pkey_index;
  std::uint16_t slid;
  std::uint8_t sl;
  std::uint8_t dlid_path_bits;
};

extern "C" {
ibv_device** ibv_get_device_list(int* count);
void ibv_free_device_list(ibv_device** list);
const char* ibv_get_device_name(ibv_device* device);
ibv_context* ibv_open_device(ibv_device* device);
int ibv_close_device(ibv_context* context);
int ibv_query_device(ibv_context* context, ibv_device_attr* out);
int ibv_query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* out);
int ibv_query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* out);
ibv_pd* ibv_alloc_pd(ibv_context* context);
int ibv_dealloc_pd(ibv_pd* pd);
ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t bytes, int access);
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t iova, unsigned access);
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int fd, int access);
int ibv_dereg_mr(ibv_mr* mr);
ibv_comp_channel* ibv_create_comp_channel(ibv_context* context);
int ibv_destroy_comp_channel(ibv_comp_channel* channel);
ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel, int vector);
int ibv_destroy_cq(ibv_cq* cq);
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context);
void ibv_ack_cq_events(ibv_cq* cq, unsigned count);
ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* wanted);
int ibv_destroy_srq(ibv_srq* srq);
ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted);
int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* wanted, int mask);
int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* out, int mask, ibv_qp_init_attr* out_init);
int ibv_destroy_qp(ibv_qp* qp);
ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* wanted);
int ibv_destroy_ah(ibv_ah* ah);
int ibv_get_async_event(ibv_context* context, ibv_async_event* out);
void ibv_ack_async_event(ibv_async_event* event);
const char* ibv_wc_status_str(ibv_wc_status status);
const char* ibv_event_type_str(ibv_event_type type);
}

inline int ibv_poll_cq(ibv_cq* cq, int count, ibv_wc* out) { return cq->context->ops.poll_cq(cq, count, out); }

inline int ibv_req_notify_cq(ibv_cq* cq, int solicited_only) {
  return cq->context->ops.req_notify_cq(cq, solicited_only);
}

inline int ibv_post_send(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** bad) {
  return qp->context->ops.post_send(qp, requests, bad);
}

inline int ibv_post_recv(ibv_qp* qp, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  return qp->context->ops.post_recv(qp, requests, bad);
}

inline int ibv_post_srq_recv(ibv_srq* srq, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  return srq->context->ops.post_srq_recv(srq, requests, bad);
}

// Drivers without memory windows leave their functions null.
inline ibv_mw* ibv_alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (pd->context->ops.alloc_mw != nullptr) return pd->context->ops.alloc_mw(pd, type);
  errno = EOPNOTSUPP;
  return nullptr;
}

inline int ibv_bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) {
  return mw->type == IBV_MW_TYPE_1 ? mw->context->ops.bind_mw(qp, mw, bind) : EINVAL;
}

inline int ibv_dealloc_mw(ibv_mw* mw) { return mw->context->ops.dealloc_mw(mw); }
// NOLINTEND
