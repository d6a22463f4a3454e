"""Measures the time from saving a policy file until it is checked and runs on a live flow.

Every byte of the live flow is compared, before, during and after the swap.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.lib.common import ROOT, Config, document, emit, interruptible, json_option, median
from transport import Connection, Endpoint

BUDGET_S = 5.0
MESSAGE_BYTES = 1 << 20
PATIENCE_S = 60.0
COLUMNS = ("round", "check_s", "swap_s", "total_s", "policy_lines", "messages", "corrupt_messages")


class Traffic:
    """Sends messages in one direction until it is stopped, and compares their bytes."""

    def __init__(self, here: Connection, there: Connection) -> None:
        self.here, self.there = here, there
        self.stopping = threading.Event()
        self.messages = self.corrupt = 0
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        want = np.random.default_rng(1).integers(0, 256, MESSAGE_BYTES, dtype=np.uint8)
        into = np.zeros(MESSAGE_BYTES, np.uint8)
        try:
            while not self.stopping.is_set():
                into[:] = 0
                request = self.there.irecv_into(into)
                self.here.send(want, timeout_s=PATIENCE_S)
                request.wait(PATIENCE_S)
                self.messages += 1
                self.corrupt += not np.array_equal(want, into)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Traffic:
        self.thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.stopping.set()
        self.thread.join()
        if self.error is not None:
            raise self.error


def check(file: Path) -> None:
    """Runs the conformance suite in a separate process, as users do."""
    program = "from transport.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "policy", "check", "--quick", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise click.ClickException(done.stdout + done.stderr)


def turn(file: Path, number: int, here: Connection, there: Connection) -> Config:
    """Times one edit: a parameter's default changes, so that no cache has the result."""
    source = (ROOT / "examples" / "my_policy.py").read_text(encoding="utf-8")
    edited = source.replace("factor=0.5", f"factor=0.5{os.getpid() % 1000:03}{number:02}")
    with Traffic(here, there) as traffic:
        file.write_text(edited, encoding="utf-8")
        saved_s = time.perf_counter()
        check(file)
        checked_s = time.perf_counter()
        here.set_policy("window", file)
        running_s = time.perf_counter()
        before = traffic.messages
        while traffic.messages < before + 5 and traffic.error is None:
            time.sleep(0.001)
        if here.policies["window"].name != "mine":
            raise click.ClickException("the policy failed and was replaced by the policy `fixed`")
    here.set_policy("window", "swift")
    return {
        "round": number,
        "check_s": round(checked_s - saved_s, 3),
        "swap_s": round(running_s - checked_s, 3),
        "total_s": round(running_s - saved_s, 3),
        "policy_lines": len(edited.splitlines()),
        "messages": traffic.messages,
        "corrupt_messages": traffic.corrupt,
    }


@click.command("turnaround")
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1), help="Edits.")
@click.option("--strict", is_flag=True, help="Fail if the median exceeds the budget.")
@json_option
def command(repeats: int, strict: bool, json_path: str | None) -> None:
    """Measures the time from saving a policy file until it is checked and runs on a live flow."""
    knobs: dict[str, Any] = {"interfaces": "lo", "engines": 1}
    rows: list[Config] = []
    failed = 0
    with (
        interruptible() as cut,
        tempfile.TemporaryDirectory() as folder,
        Endpoint(**knobs) as endpoint,
        endpoint.listen() as listener,
        endpoint.connect(listener.handle) as here,
        listener.accept(timeout_s=PATIENCE_S) as there,
    ):
        file = Path(folder, "mine.py")
        for number in range(1, repeats + 1):
            rows.append(turn(file, number, here, there))
            failed = endpoint.counters().events_policy_failed
    total_s = median(rows, "total_s") if rows else 0.0
    corrupt = sum(row["corrupt_messages"] for row in rows)
    missed = total_s > BUDGET_S
    verdict = "MISSED" if missed else "met"
    note = (
        f"median {total_s:.2f} s from saved to running: the budget of {BUDGET_S:.0f} s is {verdict}"
        f"; {corrupt} corrupt"
    )
    found = document(
        "turnaround",
        rows,
        median_total_s=total_s,
        budget_s=BUDGET_S,
        budget_met=not missed,
        policies_failed=failed,
    )
    emit(found, json_path, COLUMNS, [note] if rows else [], cut)
    if corrupt or failed:
        raise click.ClickException(f"{corrupt} corrupt messages, {failed} policies failed")
    if strict and missed:
        raise click.ClickException(note)


if __name__ == "__main__":
    command()
