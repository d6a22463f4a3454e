"""Fifty random schedules of real processes; `make schedules` plays a thousand.

Four side by side: most of a schedule is waiting.
"""

import os
import subprocess
import sys

import pytest

from tests.lab.support import ROOT, reason_to_skip

pytestmark = pytest.mark.namespaces

COUNT = int(os.environ.get("PROCESS_SCHEDULES", "50"))
SIDE_BY_SIDE = 4
LIMIT_S = 120 + 30 * COUNT


def test_schedules__leave_every_healthy_connection_whole() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    each = -(-COUNT // SIDE_BY_SIDE)
    spans = [(first, min(first + each, COUNT + 1)) for first in range(1, COUNT + 1, each)]
    players = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.processes.schedule", str(first), str(end - 1)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first, end in spans
    ]
    try:
        for player in players:
            output, _ = player.communicate(timeout=LIMIT_S)
            assert player.returncode == 0, output
    finally:
        for player in players:
            player.kill()
            player.communicate()
