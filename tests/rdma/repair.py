"""Decides how Soft-RoCE's responder is changed so that UC outlives the loss of part of a message.

Never guesses: a source in which a place is not found exactly once is refused.

Linux 6.1 notices a gap in UC's packet numbers and goes on at the next first packet, as it should,
but still remembers how the message before it began. A first packet "in the middle" of that one is
an error, so that after one loss every later message is dropped. The cure is to forget that message.
"""

import re

FORGET = """\
/* The message under way lost a packet: the next one must not find a trace of it. */
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
# Where a first packet ends the dropping; in this file only UC's case reads so.
RESUMPTION = re.compile(
    r"RXE_START_MASK\)\s*\{\s*qp->resp\.drop_msg = 0;(?=\s*return RESPST_CHK_OP_SEQ;)"
)


def repaired(source: str) -> str:
    """The text of rxe_resp.c with the repair; ValueError if it is not the text we know."""
    for what, place in (("check_psn", DEFINITION), ("UC's resumption", RESUMPTION)):
        count = len(place.findall(source))
        if count != 1:
            raise ValueError(f"rxe_resp.c: {what} is there {count} times, not once")
    source = RESUMPTION.sub(lambda found: found[0] + "\n\t\t\t\tforget_message(qp);", source)
    return DEFINITION.sub(lambda _: FORGET, source)
