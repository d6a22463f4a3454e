"""Five mistakes that a swarm must find, planted one at a time in a copy of the core.

Each mistake replaces a piece of text, as in tests/schedules/defects.py.
"""

from tests.schedules.defects import Defect

DEFECTS = (
    Defect(
        "acknowledgment_off_by_one",
        "native/core/flow_sender_ack.cc",
        "seq < ack.cumulative_seq; ++seq)",
        "seq <= ack.cumulative_seq && ledger_.holds(seq); ++seq)",
    ),
    Defect(
        "lost_timer",
        "native/core/flow_sender.cc",
        "if (path.next_check_ns == kNever) path.next_check_ns =",
        "if (path.next_check_ns == 0) path.next_check_ns =",
    ),
    Defect(
        "slab_given_back_twice",
        "native/core/send_ledger.cc",
        "      slabs_->give(entry);\n",
        "      slabs_->give(entry);\n      slabs_->give(entry);\n",
    ),
    Defect(
        "verdict_on_an_old_copy",
        "native/core/flow_sender_room.cc",
        "segment.state == SentSegment::in_flight && segment.sent_ns == entry.sent_ns",
        "segment.state == SentSegment::in_flight",
    ),
    Defect(
        "silent_path_never_probed",
        "native/core/path_set.cc",
        "set_probe(path, usable ? kNever : now_ns);",
        "set_probe(path, kNever);",
    ),
)
