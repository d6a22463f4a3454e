"""Defects to plant in a copy of the core's sources, one at a time, by replacing a piece of text.

It is an error if a text does not occur exactly once, so that a change of the sources cannot
silently disable a defect.
"""

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    *("native/telemetry", "native/core", "native/wire", "native/policy", "native/files"),
    "tests/native/rig",
)
RUNNER = "tests/schedules/runner.cc"


@dataclass(frozen=True, slots=True)
class Defect:
    """One mistake: the file, the text and its replacement."""

    name: str
    file: str
    before: str
    after: str

    def planted(self, source: str) -> str:
        """The source file with the mistake; ValueError unless the text occurs exactly once."""
        count = source.count(self.before)
        if count != 1:
            raise ValueError(f"{self.name}: the text occurs {count} times in {self.file}")
        return source.replace(self.before, self.after)


DEFECTS = (
    Defect(
        "acknowledgment_reaches_one_too_far",
        "native/core/flow_sender_ack.cc",
        "seq < ack.cumulative_seq; ++seq)",
        "seq <= ack.cumulative_seq && ledger_.holds(seq); ++seq)",
    ),
    Defect(
        "bitmap_read_off_by_one",
        "native/core/flow_sender_ack.cc",
        "const u64 base = ack.base_seq + 64 * word;",
        "const u64 base = ack.base_seq + 64 * word + 1;",
    ),
    Defect(
        "lost_bytes_stay_in_flight",
        "native/core/flow_sender_ack.cc",
        "  paths_->on_gone(path, segment.payload_bytes);\n  --state",
        "  --state",
    ),
    Defect(
        "window_less_what_is_in_flight_wraps_below_zero",
        "native/core/flow_sender.cc",
        "ledger_.inflight_bytes() + next_bytes > window_.window_bytes()",
        "u64(window_.window_bytes() - ledger_.inflight_bytes()) < u64(next_bytes)",
    ),
    Defect(
        "messages_of_one_segment_pass_by_the_window",
        "native/core/flow_sender.cc",
        "if (ledger_.inflight_bytes() != 0 && ledger",
        "const bool small = queue_.has_unsent() &&\n"
        "                     queue_.next().message_bytes <= segment_payload_bytes();\n"
        "  if (!small && ledger_.inflight_bytes() != 0 && ledger",
    ),
    Defect(
        "loss_timer_never_set",
        "native/core/flow_sender.cc",
        "if (path.next_check_ns == kNever) path.next_check_ns =",
        "if (path.next_check_ns == 0) path.next_check_ns =",
    ),
    Defect(
        "silent_peer_never_dies",
        "native/core/stack_transmit.cc",
        "!shared_.config.external_failure_detector && target->silent(now_ns)",
        "!shared_.config.external_failure_detector && target->silent(now_ns) && index == kNone",
    ),
    Defect(
        "eager_slot_reused_while_in_use",
        "native/core/receive_queue.cc",
        "const bool free = slot.state == Slot::idle ||",
        "const bool free = slot.state == Slot::idle || slot.state == Slot::eager ||",
    ),
    Defect(
        "eager_block_given_back_twice",
        "native/core/receive_queue.cc",
        "    shared_->eager_blocks.give(block);\n",
        "    shared_->eager_blocks.give(block);\n    shared_->eager_blocks.give(block);\n",
    ),
    Defect(
        "empty_message_never_arrives",
        "native/core/receive_queue.cc",
        "  if (payload_bytes == 0) slot.empty_arrived = true;\n",
        "",
    ),
    Defect(
        "longer_message_than_its_receive_taken",
        "native/core/receive_queue.cc",
        "if (message_bytes > slot->capacity_bytes) return Placement::too_long;",
        "if (message_bytes > slot->capacity_bytes + 1) return Placement::too_long;",
    ),
    Defect(
        "duplicate_placed_twice",
        "native/core/receive_window.cc",
        "&& bit(seq) ? Arrival::duplicate : Arrival::fresh;",
        "&& bit(seq) ? Arrival::fresh : Arrival::fresh;",
    ),
    Defect(
        "silent_path_never_probed",
        "native/core/path_set.cc",
        "set_probe(path, usable ? kNever : now_ns);",
        "set_probe(path, kNever);",
    ),
    Defect(
        "copy_takes_the_path_that_lost_it",
        "native/core/flow_sender.cc",
        "if (resend) request.avoid_path = ",
        "if (resend && limit_bytes == nullptr) request.avoid_path = ",
    ),
    Defect(
        "burst_overruns_the_port",
        "native/core/path_set.cc",
        "std::max(std::min(pick.burst_bytes, left), request.segment_bytes);",
        "std::max(std::max(pick.burst_bytes, left), request.segment_bytes);",
    ),
    Defect(
        "payload_crc_unchecked",
        "native/core/flow_receiver.cc",
        "datagram.payload_bytes) != data.payload_crc) {",
        "datagram.payload_bytes) != data.payload_crc && payload == nullptr) {",
    ),
    Defect(
        "send_done_one_segment_early",
        "native/core/send_queue.cc",
        "message.handed_out && message.unacked_bytes == 0;",
        "message.handed_out && message.unacked_bytes <= bytes;",
    ),
    Defect(
        "acknowledged_segment_left_to_be_resent",
        "native/core/send_ledger.cc",
        "    unlink(&lost_, seq);\n  } else if",
        "  } else if",
    ),
    Defect(
        "lost_advertisement_never_repeated",
        "native/core/advertiser.h",
        "resend_ns_ = now_ns + std::min(rto_ns << backoff_, interval_ns_max);",
        "resend_ns_ = rto_ns < 0 ? now_ns : kNever;",
    ),
    Defect(
        "close_said_once",
        "native/core/closer.h",
        "next_ns_ = now_ns + (rto_ns > interval_ns_max",
        "next_ns_ = kNever - 1 + 0 * (rto_ns > interval_ns_max",
    ),
)


class Workshop:
    """Builds runners from a copy of the sources: all units once, then only changed units."""

    product = "weft_schedules"

    def __init__(self, directory: Path, policies: Path) -> None:
        self.directory = directory
        self.policies = policies
        self.base = directory / "base"
        for room in ROOMS:
            shutil.copytree(ROOT / room, self.base / room)
        (self.base / RUNNER).parent.mkdir(parents=True)
        shutil.copy(ROOT / RUNNER, self.base / RUNNER)
        self.units = sorted(p.relative_to(self.base) for p in self.base.rglob("*.cc"))

    def flags(self) -> list[str]:
        here = platform.machine() in {"x86_64", "AMD64"}
        return ["-std=c++20", "-O1", "-DNDEBUG", *(["-march=x86-64-v3"] if here else [])]

    def call(self, *arguments: object) -> None:
        compiler = os.environ.get("CXX", "c++")
        done = subprocess.run(
            [compiler, *map(str, arguments)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{compiler} failed:\n{done.stderr}")

    def object_of(self, unit: Path, tree: Path) -> Path:
        return tree / "objects" / ("_".join(unit.parts) + ".o")

    def compile(self, unit: Path, tree: Path) -> Path:
        """Compiles a unit; files in `tree` replace those of the unchanged copy."""
        out = self.object_of(unit, tree)
        out.parent.mkdir(parents=True, exist_ok=True)
        source = tree / unit if (tree / unit).exists() else self.base / unit
        dependencies = ["-MMD", "-MF", out.with_suffix(".d")]
        includes = [f"-I{tree}", f"-I{self.base}"]
        self.call(*self.flags(), *dependencies, *includes, "-c", source, "-o", out)
        return out

    def link(self, objects: list[Path], program: Path) -> Path:
        fixed = sorted(self.policies.glob("fixed_*.o"))
        self.call(*objects, *fixed, "-ldl", "-o", program)
        return program

    def units_that_read(self, file: str) -> list[Path]:
        """The compilation units that include a file, from the compiler's dependency lists."""
        name = re.compile(re.escape(file) + r"(\s|$)")
        return [
            unit
            for unit in self.units
            if name.search(self.object_of(unit, self.base).with_suffix(".d").read_text())
        ]

    def build(self, defect: Defect) -> Path:
        """Builds a runner with the defect; recompiles only units that include the changed file."""
        tree = self.directory / defect.name
        changed = tree / defect.file
        changed.parent.mkdir(parents=True)
        changed.write_text(defect.planted((self.base / defect.file).read_text()))
        again = set(self.units_that_read(defect.file))
        objects = [
            self.compile(unit, tree) if unit in again else self.object_of(unit, self.base)
            for unit in self.units
        ]
        return self.link(objects, tree / self.product)
