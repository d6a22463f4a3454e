"""Sends numbered UC writes from rxea to rxeb and prints the numbers that arrive.

Usage: uc_stream.py MESSAGES BYTES, with the system's Python, whose pyverbs fits its rdma-core.
"""

import sys
import time

from pyverbs import enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

GID_INDEX = 1
WINDOW = 16
QUIET_S = 0.5


class End:
    """A device with one UC queue pair and one buffer."""

    def __init__(self, name: str, size_bytes: int, receives: int) -> None:
        self.context = Context(name=name)
        self.domain = PD(self.context)
        self.queue = CQ(self.context, max(receives, WINDOW) + 1)
        rights = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.memory = MR(self.domain, size_bytes, rights)
        room = QPCap(max_send_wr=WINDOW, max_recv_wr=receives)
        kind = QPInitAttr(qp_type=e.IBV_QPT_UC, scq=self.queue, rcq=self.queue, cap=room)
        self.pair = QP(self.domain, kind)

    def connect(self, peer: "End") -> None:
        gid = peer.context.query_gid(1, GID_INDEX)
        route = GlobalRoute(dgid=gid, sgid_index=GID_INDEX)
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        attributes.path_mtu = e.IBV_MTU_4096
        attributes.dest_qp_num = peer.pair.qp_num
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        self.pair.to_rts(attributes)

    def poll(self) -> list[int]:
        """The message numbers of the completions that are available now."""
        _, completions = self.queue.poll(num_entries=WINDOW)
        for completion in completions:
            if completion.status != e.IBV_WC_SUCCESS:
                raise RuntimeError(
                    f"a work request failed with completion status {completion.status}"
                )
        return [completion.imm_data for completion in completions]


def stream(messages: int, size_bytes: int) -> list[int]:
    sender, receiver = End("rxea", size_bytes, 1), End("rxeb", size_bytes, messages)
    sender.connect(receiver)
    receiver.connect(sender)
    # A receive delivers only an immediate number, but pyverbs requires a buffer for each receive.
    nowhere = SGE(receiver.memory.buf, 1, receiver.memory.lkey)
    for number in range(messages):
        receiver.pair.post_recv(RecvWR(wr_id=number, num_sge=1, sg=[nowhere]))
    piece = SGE(sender.memory.buf, size_bytes, sender.memory.lkey)
    arrived: list[int] = []
    posted, done, last_s = 0, 0, time.monotonic()
    while time.monotonic() - last_s < QUIET_S:
        while posted < messages and posted - done < WINDOW:
            write = SendWR(wr_id=posted, num_sge=1, sg=[piece], imm_data=posted)
            write.opcode = e.IBV_WR_RDMA_WRITE_WITH_IMM
            write.send_flags = e.IBV_SEND_SIGNALED
            write.set_wr_rdma(receiver.memory.rkey, receiver.memory.buf)
            sender.pair.post_send(write)
            posted += 1
        sent, fresh = sender.poll(), receiver.poll()
        done += len(sent)
        arrived += fresh
        if sent or fresh:
            last_s = time.monotonic()
    return arrived


if __name__ == "__main__":
    print(*stream(int(sys.argv[1]), int(sys.argv[2])))
