"""Records decisions of live policies, and calls the policies again as the simulator does.

transport.policies.replay_native compares the policies' answers bit for bit.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.lib.common import Config, document, emit, interruptible
from transport import Connection, Endpoint, native
from transport.policies.replay_native import ReplayedRecordings, replay_files

PATIENCE_S = 60.0
PATHS = 16
MESSAGES = 20_000  # messages of a recording, which has some 100 MB and is deleted after replay
IN_FLIGHT = 16
# Message sizes: small messages are single segments, large messages are bursts of segments.
SIZES = (2_000, 9_000, 30_000, 4_000, 120_000, 1_000, 16_000, 300)
# Policies of each recording; together they include every shipped policy in common use.
RUNS = (
    {"window": "swift", "path": "power_of_two", "loss": "rack", "credit": "none"},
    {"window": "nscc", "path": "reps", "loss": "rack", "credit": "none"},
    {"window": "dctcp", "path": "bitmap", "loss": "rack", "credit": "eqds"},
    {"window": "bbr", "path": "mixed", "loss": "rack", "credit": "rccc"},
    {"window": "cubic", "path": "plb", "loss": "sleek", "credit": "grant"},
    {"window": "timely", "path": "flowlet", "loss": "selective", "credit": "none"},
)
# Loss rates, used in turn: at 0.5 %, later segments reveal losses; at 20 %, often timers do.
LOSSES = (0.005, 0.2)
COLUMNS = ("family", "policy", "decisions", "differ", "skipped", "failed", "by_hook", "sha256")


def drive(sender: Connection, receiver: Connection, messages: int) -> None:
    """Sends messages of several sizes, several at a time; compares received with sent bytes."""
    content = np.random.default_rng(1).integers(0, 256, max(SIZES), dtype=np.uint8)
    memory = np.zeros((IN_FLIGHT, max(SIZES)), np.uint8)
    sends: list[Any] = [None] * IN_FLIGHT
    takes: list[Any] = [None] * IN_FLIGHT
    for index in range(messages + IN_FLIGHT):
        slot = index % IN_FLIGHT
        if takes[slot] is not None:
            size = takes[slot].wait(PATIENCE_S)
            sends[slot].wait(PATIENCE_S)
            if not np.array_equal(memory[slot, :size], content[:size]):
                raise click.ClickException("a message had wrong bytes: the recording is not valid")
        if index < messages:
            size = SIZES[index % len(SIZES)]
            takes[slot] = receiver.irecv_into(memory[slot, :size])
            sends[slot] = sender.isend(content[:size])
        else:
            takes[slot] = None


def recorded(folder: Path, policies: dict[str, str], loss: float, messages: int) -> list[Path]:
    """Records all decisions of both ends of a loopback connection with loss and reordering."""
    knobs: dict[str, Any] = {f"{family}_policy": name for family, name in policies.items()}
    knobs |= {"interfaces": "lo", "engines": 1, "paths": PATHS}
    knobs |= {"fault": {"loss": loss, "reorder": 0.01}, "record_file": folder / "run-%p.weftrec"}
    with Endpoint(**knobs) as server, Endpoint(**knobs) as client, server.listen() as listener:
        sender = client.connect(listener.handle, timeout_s=PATIENCE_S)
        with sender, listener.accept(timeout_s=PATIENCE_S) as receiver:
            drive(sender, receiver, messages)
    return sorted(folder.glob("*.weftrec*"))


def replayed(events: int) -> Iterator[tuple[int, ReplayedRecordings]]:
    """Makes, replays and removes recordings in turn, until `events` decisions are replayed."""
    each = -(-events // len(RUNS))
    for number, policies in enumerate(RUNS):
        done = turn = 0
        while done < each:
            messages = min(MESSAGES, max(each // 4, 100))
            with tempfile.TemporaryDirectory(prefix="weft-fidelity-") as folder:
                loss = LOSSES[turn % len(LOSSES)]
                share = messages if turn % len(LOSSES) == 0 else max(messages // 10, 50)
                found = replay_files(recorded(Path(folder), policies, loss, share))
            yield number, found
            if found.decisions == 0:
                raise click.ClickException("a recording has no decision that could be replayed")
            done += found.decisions
            turn += 1


def rows_of(found: list[ReplayedRecordings], files: dict[str, str]) -> list[Config]:
    """A row for each policy, summed over all recordings."""
    rows: dict[tuple[str, str], Config] = {}
    for one in (policy for each in found for policy in each.policies):
        row = rows.setdefault(
            (one.family, one.name),
            {
                "family": one.family,
                "policy": one.name,
                **dict.fromkeys(("decisions", "differ", "skipped", "failed"), 0),
                "hooks": dict.fromkeys(one.by_hook, 0),
                "source_sha256": one.source_sha256,
                "sha256": files.get(f"{one.family}_{one.name}.so", "linked in")[:16],
            },
        )
        for name in ("decisions", "differ", "skipped", "failed"):
            row[name] += getattr(one, name)
        for hook, count in one.by_hook.items():
            row["hooks"][hook] += count
    for row in rows.values():
        row["by_hook"] = ", ".join(f"{hook} {count}" for hook, count in row["hooks"].items())
    return sorted(rows.values(), key=lambda row: (row["family"], row["policy"]))


def run(events: int, json_path: str | None) -> None:
    """Records and replays policy decisions; exits with 1 if one differs or cannot be compared."""
    found: list[ReplayedRecordings] = []
    with interruptible() as cut:
        found.extend(one for _, one in replayed(events))
    rows = rows_of(found, _files())
    total = sum(row["decisions"] for row in rows)
    differ = sum(row["differ"] for row in rows)
    skipped = sum(row["skipped"] for row in rows)
    lost = sum(one.lost for one in found)
    totals = {"decisions": total, "differ": differ, "skipped": skipped, "lost": lost}
    notes = [
        f"{row['family']} {row['policy']}: {row['decisions']} decisions, {row['differ']} differ"
        for row in rows
    ]
    notes.append(f"{total} decisions of {len(found)} runs, {differ} differ, {skipped} skipped")
    if lost:
        notes.append(f"{lost} decisions were dropped while recording: later ones may differ")
    emit(document("fidelity events", rows, totals=totals), json_path, COLUMNS, notes, cut)
    first = next((one.first_difference for one in found if one.first_difference), "")
    if differ or skipped:
        raise click.ClickException(
            first or f"{skipped} decisions not replayed: unknown policy or no recorded on_start"
        )


def _files() -> dict[str, str]:
    """SHA-256 of the shipped policy libraries; live engines and the replay load the same files."""
    return {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest()
        for one in native.POLICY_DIRECTORY.glob("*.so")
    }
