"""Patches Soft-RoCE's responder so that a UC queue pair survives the loss of part of a message.

After a gap in UC's packet numbers Linux 6.1 resumes at the next first packet, as it should, but
keeps the state of the incomplete message. A first packet in the middle of a message is an error, so
after one loss every later message is dropped. The patch resets the state of that message. A source
in which a place to patch does not occur exactly once is refused.
"""

import re

FORGET = """\
/* The current message lost a packet: reset its state before the next message. */
static void forget_message(struct rxe_qp *qp)
{
	struct rxe_recv_wqe *wqe = qp->resp.wqe;

	if (wqe) {
		wqe->dma.resid = wqe->dma.length;
		wqe->dma.cur_sge = 0;
		wqe->dma.sge_offset = 0;
	}
	if (qp->resp.mr)
		rxe_put(qp->resp.mr);
	qp->resp.mr = NULL;
	qp->resp.opcode = -1;
}

"""

DEFINITION = re.compile(r"(?=^static enum resp_states check_psn\()", re.MULTILINE)
# Matches the code with which a UC queue pair stops dropping packets at a first packet.
RESUMPTION = re.compile(
    r"RXE_START_MASK\)\s*\{\s*qp->resp\.drop_msg = 0;(?=\s*return RESPST_CHK_OP_SEQ;)"
)


def repaired(source: str) -> str:
    """The text of rxe_resp.c with the patch; ValueError if it is not the expected source."""
    for what, place in (("check_psn", DEFINITION), ("UC's resumption", RESUMPTION)):
        count = len(place.findall(source))
        if count != 1:
            raise ValueError(f"rxe_resp.c: {what} occurs {count} times, not once")
    source = RESUMPTION.sub(lambda found: found[0] + "\n\t\t\t\tforget_message(qp);", source)
    return DEFINITION.sub(lambda _: FORGET, source)
