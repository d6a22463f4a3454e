"""What window events say of trimmed segments and of messages, in simulated networks."""

from pathlib import Path

import pytest

from transport.sim import run

from .support import judge, needs_fabric, scenario

pytest.importorskip("numba")
pytestmark = needs_fabric

NETWORK = """
hosts = 8
hosts_per_leaf = 8
spines = 1
queue_bytes = 40_000
header_queue_bytes_max = 80_000
trim = {trim}
"""
INCAST = """
[[workload]]
pattern = "incast"
size_bytes = "1 MB"
"""


def fails(folder: Path, condition: str, trim: bool = True) -> bool:
    """Whether the condition held of an event of any flow of an incast."""
    network = NETWORK.format(trim=str(trim).lower())
    if not trim:
        network = network.replace("header_queue_bytes_max = 80_000\n", "")
    result = run(scenario(network, INCAST), {"window": str(judge(folder, condition))})
    assert result.finished
    return int(result.totals["policies_failed"]) > 0


def test_event__a_trimmed_segment_is_told_from_a_dropped_one(tmp_path: Path) -> None:
    trimmed = "event.kind == 1 and event.trimmed_segments == event.lost_segments"
    assert fails(tmp_path, trimmed)
    assert not fails(tmp_path, trimmed, trim=False)
    assert not fails(tmp_path, "event.trimmed_segments > event.lost_segments")
    assert not fails(tmp_path, "event.kind != 1 and event.trimmed_segments != 0")


def test_event__names_the_message_and_what_is_left_of_it(tmp_path: Path) -> None:
    assert fails(
        tmp_path, "event.message_bytes == 1_000_000 and event.message_left_bytes < 500_000"
    )
    assert not fails(tmp_path, "event.message_bytes != 1_000_000 and event.message_bytes != 0")
    assert not fails(tmp_path, "event.message_left_bytes > event.message_bytes")
