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

# A thread that blocks no signals, as those of NumPy, takes the signal instead of the main thread.
OTHER_THREAD = """
import signal, threading, time
from transport.ground.workers import interrupts_held

threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
(other,) = set(threading.enumerate()) - {threading.main_thread()}
try:
    with interrupts_held():
        signal.pthread_kill(other.ident, signal.SIGINT)
        for _ in range(20):
            time.sleep(0.01)
        print("not interrupted", flush=True)
    time.sleep(1e6)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_workers__interrupts_are_held_that_another_thread_gets() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OTHER_THREAD],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n") == ["not interrupted", "interrupted", ""]


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
