"""A window below one segment: the core paces single segments at window / RTT."""

from pathlib import Path

import pytest

from transport.policies.trial import Network, Traffic, run

pytest.importorskip("numba")

SEGMENT_BYTES = 4_160
RTT_NS = 100_000
SOURCE = """
from congestion.api import record, window_policy


def answer(flow, params, event, result):
    result.window_bytes = params.window_segments * event.segment_bytes
    result.window_segments_min = params.least


POLICY = window_policy(
    "steady",
    params=record(window_segments=0.25, least=0.0),
    on_start=answer,
    on_ack=answer,
    on_loss=answer,
    on_timeout=answer,
    presets={"partial": {"least": 1e-6}, "small": {"least": 1e-6, "window_segments": 1e-6}},
)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "steady.py"
    path.write_text(SOURCE)
    return path


def segments(policy: str, duration_ns: int) -> int:
    """How many segments one flow delivers; no queue adds to the RTT of 100 us."""
    outcome = run(
        {"window": policy},
        Network(delay_ns=RTT_NS // 2, mark_bytes=0),
        Traffic(flows=1, duration_ns=duration_ns, segment_bytes=SEGMENT_BYTES),
    )
    assert not outcome.report.violation
    delivered: int = outcome.report.flows[0].delivered_bytes
    return round(delivered / (SEGMENT_BYTES - 64))


def test_partial_window__is_one_segment_unless_the_policy_allows_less(file: Path) -> None:
    # Serialization and the delay of acknowledgments add 3 to 35 us to the round trip.
    assert 700 < segments(str(file), 100_000_000) < 1_000


def test_partial_window__a_quarter_sends_a_segment_in_four_round_trips(file: Path) -> None:
    assert 170 < segments(f"{file}:partial", 100_000_000) < 255
    half = segments(f"{file}:partial,window_segments=0.5", 100_000_000)
    assert half == pytest.approx(2 * segments(f"{file}:partial", 100_000_000), rel=0.02)


def test_partial_window__the_pacer_sends_ten_segments_a_second_at_least(file: Path) -> None:
    assert 9 <= segments(f"{file}:small", 1_000_000_000) <= 12


def test_partial_window__a_least_window_that_is_no_number_ends_the_policy(file: Path) -> None:
    wrong = file.with_name("wrong.py")
    wrong.write_text(
        SOURCE.replace("= params.least", "= math.inf * params.least").replace(
            "from congestion", "import math\n\nfrom congestion"
        )
    )
    outcome = run({"window": f"{wrong}:partial"}, Network(), Traffic(flows=1))
    assert outcome.report.policies_failed == 1
    assert outcome.report.flows[0].delivered_bytes > 0
