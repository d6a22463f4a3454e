"""What the driver's XID numbers mean, whom they blame, and what to do.

Facts from NVIDIA's XID documentation (docs.nvidia.com/deploy/xid-errors, with its catalog), in our
own words. The same number can have several causes; the table has the usual one.
"""

from __future__ import annotations

from dataclasses import dataclass

# Whom an XID blames. A program that reads a wrong address causes XIDs as well; some only follow
# from an earlier one; some tell of a GPU that still works, and will not for long.
HARDWARE, WEARS, PROGRAM, FOLLOWS = "hardware", "wears", "program", "follows"

RESET = "Reset the GPU (nvidia-smi -r) or restart the host before the next job"
REPLACE = f"{RESET}; if it repeats, run dcgmi diag -r 3 and have the GPU replaced"
SEAT = "Restart the host; check power, cooling and the seat of the GPU; if it repeats, replace it"
LOOK = "Look for the first error before it, in the program or in this log"
DEBUG = "Run the program with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; on one GPU only, test it"
SOON = "Drain the host soon and reset the GPU"
LINK = "Check NVLink (nvidia-smi nvlink -e), bridges and the fabric manager; reset all its GPUs"


@dataclass(frozen=True)
class Xid:
    """blames: one of the constants above. action: what to do, without a full stop."""

    meaning: str
    blames: str
    action: str

    @property
    def is_fault(self) -> bool:
        """Whether the GPU or its links are at fault, as far as the number tells."""
        return self.blames in (HARDWARE, WEARS)


XIDS = {
    8: Xid("the GPU stopped processing", PROGRAM, DEBUG),
    13: Xid("an exception of the graphics engine, as by an access out of bounds", PROGRAM, DEBUG),
    31: Xid("a page fault: the program used an address that is not mapped", PROGRAM, DEBUG),
    32: Xid("a corrupted command buffer", PROGRAM, LOOK),
    38: Xid("an error of the driver's firmware", FOLLOWS, LOOK),
    43: Xid("the GPU stopped a program after a fault of the program", PROGRAM, DEBUG),
    45: Xid("a program was ended, or its work was removed after another error", FOLLOWS, LOOK),
    46: Xid("the GPU stopped processing", HARDWARE, REPLACE),
    48: Xid("an ECC error of two bits, which cannot be corrected", HARDWARE, REPLACE),
    61: Xid("the GPU's microcontroller reported a breakpoint or warning", WEARS, SOON),
    62: Xid("the GPU's microcontroller halted", HARDWARE, REPLACE),
    63: Xid("a row of memory is to be remapped, or a page retired, at the next reset", WEARS, SOON),
    64: Xid("a row of memory could not be remapped, or a page not retired", HARDWARE, REPLACE),
    68: Xid("an exception of the video decoder", PROGRAM, DEBUG),
    69: Xid("a class error of the graphics engine", PROGRAM, DEBUG),
    74: Xid("an error of NVLink", HARDWARE, LINK),
    79: Xid("the GPU has fallen off the bus", HARDWARE, SEAT),
    92: Xid("many ECC errors of one bit", WEARS, SOON),
    94: Xid("a contained memory error: one program was ended, others go on", HARDWARE, REPLACE),
    95: Xid("an uncontained memory error: programs may have wrong data", HARDWARE, REPLACE),
    109: Xid("a context switch took too long", PROGRAM, LOOK),
    110: Xid("a security fault of the GPU", HARDWARE, SEAT),
    119: Xid("the GPU's system processor (GSP) did not answer the driver", HARDWARE, REPLACE),
    120: Xid("the GPU's system processor (GSP) failed", HARDWARE, REPLACE),
    121: Xid("an error of the link between CPU and GPU, which was corrected", WEARS, SOON),
    123: Xid("the GPU's power management failed", HARDWARE, REPLACE),
    136: Xid("a link of the GPU could not be trained", HARDWARE, LINK),
    137: Xid("a fault of memory access over NVLink, as by a program at another GPU", FOLLOWS, LOOK),
    140: Xid("an ECC error that was not recovered from", HARDWARE, REPLACE),
    143: Xid("the GPU could not be initialised", HARDWARE, SEAT),
    **dict.fromkeys(range(144, 151), Xid("an error of NVLink 5", HARDWARE, LINK)),
    154: Xid("the driver says that the GPU needs a reset or a restart", FOLLOWS, LOOK),
}


def xid_of(number: int) -> Xid:
    """What an XID means. A number that the table lacks blames nobody."""
    return XIDS.get(number, Xid("not in weft's table", FOLLOWS, "Look it up in NVIDIA's catalog"))
