// A send and a receive, as their caller posts them to a flow.
#pragma once

#include "native/core/types.h"

namespace weft::core {

struct ReceiveTicket;
struct Stage;

struct SendPost {
  u64 message;  // number of the message within the connection
  const u8* data;
  u64 bytes;     // size of the whole message, of which the flow carries a stripe
  u32 memory;    // id of the memory registration that contains `data`; 0: none
  void* cookie;  // caller's value, returned in the event send_done
  // The bounce buffer that supplies the flow's stripe if `data` is null. It must stay valid until the send is done or
  // the flow is released.
  Stage* stage;
};

struct ReceivePost {
  // Number of the message within the connection; increases from call to call. A number is skipped if takes_part() is
  // false for the receive's capacity, because no part of that message can arrive over this flow.
  u64 message;
  u8* data;
  u64 capacity_bytes;
  // Key of the memory window onto the buffer, or 0. The caller must close the window at the event stripe_placed or
  // window_unused with this key, or when the flow no longer refers to the buffer.
  u32 key;
  ReceiveTicket* ticket;
  Stage* stage;  // the bounce buffer that takes the flow's stripe if `data` is null; such a receive has no window
};

}  // namespace weft::core
