"""Tests that SIGINT is blocked while the first worker process starts."""

import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

# Runs in its own process, because multiprocessing starts its tracker with the first process.
FIRST_WORKER = """
import signal
from multiprocessing import get_context
from transport.ground.workers import interrupts_held

if __name__ == "__main__":
    with interrupts_held():
        worker = get_context("spawn").Process(target=print)
        worker.start()
        held = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    worker.join()
    assert held == {signal.SIGINT}, held
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
"""


def test_workers__the_first_one_starts_with_interrupts_held(tmp_path: Path) -> None:
    script = tmp_path / "first.py"
    script.write_text(FIRST_WORKER)
    subprocess.run(
        [sys.executable, str(script)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        timeout=PATIENCE_S,
        check=True,
    )
