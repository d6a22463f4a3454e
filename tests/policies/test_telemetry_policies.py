"""Tests hpcc, poseidon and powertcp, interpreted, against hand-made telemetry of the ports.

The expected numbers come from the algorithms in the papers.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from congestion.api import MAX_HOPS
from congestion.registry import find
from congestion.window import poseidon

from .rig import US, Rig

RATE = 12_500_000_000
BASE_US = 20
PRODUCT = RATE * BASE_US // 1_000_000  # bytes of a base RTT
NETWORK = {
    "segment_bytes": 1_064,
    "link_bytes_per_s": RATE,
    "window_bytes_max": 1 << 24,
    "rtt_min_ns": BASE_US * US,
    "srtt_ns": BASE_US * US,
    "rtt_ns": BASE_US * US,
}


class Flow:
    """A flow under a policy with the paper's parameters, whose acknowledgments bring telemetry."""

    def __init__(self, name: str, **params: float) -> None:
        policy = find("window", name)
        self.rig = Rig(policy)
        for field, value in {**policy.presets["paper"], **params}.items():
            self.rig.params[field] = value
        self.start = float(self.rig.call("on_start", **NETWORK)["window_bytes"])
        self.delivered_bytes = 0

    def ack(self, now_us: float, *hops: tuple[int, int], path: int = 0, **fields: Any) -> float:
        """hops: of each port the queue and the bytes sent. The port's clock is the flow's."""
        self.delivered_bytes += PRODUCT
        row: dict[str, Any] = {"hops": len(hops)}
        values = {
            "hop_queue_bytes": [queue for queue, _ in hops],
            "hop_tx_bytes": [sent for _, sent in hops],
            "hop_timestamp_ns": [int(now_us * US)] * len(hops),
            "hop_link_bytes_per_s": [RATE] * len(hops),
        }
        for name, some in values.items():
            row[name] = some + [0] * (MAX_HOPS - len(some))
        given = NETWORK | row | {"now_ns": int(now_us * US), "path": path} | fields
        given["delivered_bytes"] = self.delivered_bytes
        return float(self.rig.call("on_ack", **given)["window_bytes"])


def test_hpcc__starts_with_the_links_bytes_in_a_round_trip() -> None:
    assert Flow("hpcc").start == pytest.approx(PRODUCT)


def test_hpcc__the_window_follows_the_busiest_port() -> None:
    flow = Flow("hpcc")
    flow.ack(1_000, (0, 0), (PRODUCT, 0))
    # Both ports sent all they could; before the second, two samples found a round trip's bytes.
    window = flow.ack(1_000 + BASE_US, (0, PRODUCT), (PRODUCT, PRODUCT))
    assert flow.rig.state("u") == pytest.approx(2.0)
    increase = 0.05 * PRODUCT / 100
    assert window == pytest.approx(PRODUCT * 0.95 / 2.0 + increase, rel=0.01)


def test_hpcc__of_two_samples_the_smaller_queue_counts() -> None:
    flow = Flow("hpcc")
    flow.ack(1_000, (0, 0))
    flow.ack(1_000 + BASE_US, (PRODUCT, PRODUCT))
    assert flow.rig.state("u") == pytest.approx(1.0)


def test_hpcc__below_eta_it_adds_and_after_five_round_trips_it_multiplies() -> None:
    flow = Flow("hpcc")
    flow.rig.flow["base_window_bytes"] = flow.rig.flow["window_bytes"] = PRODUCT / 10
    flow.ack(1_000, (0, 0))
    windows = [flow.ack(1_000 + BASE_US * step, (0, PRODUCT * step // 10)) for step in range(1, 9)]
    grown = [after / before for before, after in pairwise(windows)]
    assert max(grown) > 5
    assert sorted(grown)[-2] < 1.05


ESTIMATES = {"hpcc": "u", "powertcp": "power"}


@pytest.mark.parametrize("name", ["hpcc", "powertcp"])
def test_telemetry__of_another_path_is_not_compared(name: str) -> None:
    flow = Flow(name)
    flow.ack(1_000, (0, 0))
    before = flow.rig.state(ESTIMATES[name])
    for path in range(1, 12):
        flow.ack(1_000 + path, (10 * PRODUCT, 7), path=path)
    assert flow.rig.state(ESTIMATES[name]) == before


@pytest.mark.parametrize("name", ["hpcc", "powertcp"])
@pytest.mark.parametrize("paths", [2, 7, 16, 64])
def test_telemetry__a_path_is_compared_when_it_comes_back_however_late(
    name: str, paths: int
) -> None:
    """An idle network after a full one: the estimate falls, though no path returns in a trip."""
    flow = Flow(name)
    flow.ack(1_000, (0, 0))
    flow.ack(1_000 + BASE_US, (9 * PRODUCT, 9 * PRODUCT))
    high = flow.rig.state(ESTIMATES[name])
    for turn in range(3 * paths):
        at_us = 1_000 + (2 + turn) * BASE_US
        flow.ack(at_us, (0, 10 * PRODUCT + turn * PRODUCT // 10), path=turn % paths)
    assert flow.rig.state(ESTIMATES[name]) < 0.5 < high


@pytest.mark.parametrize("name", ["hpcc", "powertcp"])
def test_telemetry__an_acknowledgment_without_it_changes_no_estimate(name: str) -> None:
    flow, field = Flow(name), {"hpcc": "u", "powertcp": "power"}[name]
    flow.ack(1_000, (0, 0))
    flow.ack(1_000 + BASE_US, (0, PRODUCT))
    before = float(flow.rig.state(field))
    flow.ack(1_000 + 2 * BASE_US, rtt_ns=10 * BASE_US * US)
    assert flow.rig.state(field) == before


@pytest.mark.parametrize("name", ["hpcc", "poseidon", "powertcp"])
def test_telemetry__without_any_the_round_trip_decides(name: str) -> None:
    flow = Flow(name)
    for step in range(1, 4):
        window = flow.ack(1_000 + BASE_US * step)
    assert window > 0.9 * PRODUCT
    for step in range(4, 9):
        window = flow.ack(1_000 + 2 * BASE_US * step, rtt_ns=2 * BASE_US * US)
    assert window < 0.7 * PRODUCT


def test_powertcp__power_is_current_times_voltage() -> None:
    flow = Flow("powertcp")
    flow.ack(1_000, (0, 0))
    # The port sent all it could while its queue grew by a round trip's bytes: current 2, voltage 2.
    window = flow.ack(1_000 + BASE_US, (PRODUCT, PRODUCT))
    assert flow.rig.state("power") == pytest.approx(4.0)
    assert window == pytest.approx(0.9 * (PRODUCT / 4 + PRODUCT / 100) + 0.1 * PRODUCT, rel=0.02)


def test_powertcp__a_queue_that_drains_is_no_reason_to_send_less() -> None:
    flow = Flow("powertcp")
    flow.ack(1_000, (PRODUCT, 0))
    flow.ack(1_000 + BASE_US, (0, PRODUCT))  # sent a round trip's bytes, all from the queue
    assert flow.rig.state("power") == 1.0  # no power above 0: the sample counts for nothing


@pytest.mark.parametrize("name", ["hpcc", "poseidon", "powertcp"])
def test_telemetry__losses_halve_once_a_round_trip_and_timeouts_leave_the_least(name: str) -> None:
    flow = Flow(name, window_segments_min=1.0)
    lost = NETWORK | {"now_ns": 1_000 * US, "lost_bytes": 1_000, "lost_segments": 1}
    for _ in range(3):
        window = flow.rig.call("on_loss", **lost)["window_bytes"]
    assert window == pytest.approx(PRODUCT / 2)
    for _ in range(3):
        window = flow.rig.call("on_timeout", **lost)["window_bytes"]
    assert window == 1_064


def test_poseidon__its_logarithm_and_exponential_are_exact_enough() -> None:
    for exponent in range(41):
        x = 10.0 ** (exponent * 0.3)
        assert poseidon.log_of(x) == pytest.approx(math.log(x), abs=1e-9, rel=1e-7)
    for tenth in range(-30, 31):
        assert poseidon.exp_of(tenth / 10) == pytest.approx(math.exp(tenth / 10), rel=1e-8)


def poseidon_flow(window_bytes: float = PRODUCT) -> Flow:
    flow = Flow("poseidon", rate_max_bytes_per_s=RATE, rate_min_bytes_per_s=RATE / 1_000)
    flow.rig.call("on_start", **(NETWORK | {"hint_window_bytes": window_bytes}))
    return flow


def test_poseidon__stays_where_the_delay_is_the_target_of_its_rate() -> None:
    """MPT = k + p * ln(max / rate) / ln(max / min), the equation of section 3."""
    for share in (1.0, 0.5, 0.1, 0.01):
        flow = poseidon_flow(share * PRODUCT)
        target_ns = 2_000 + 40_000 * math.log(1 / share) / math.log(1_000)
        queue = int(target_ns * RATE / 1e9)
        window = flow.ack(1_000, (queue, 0), (queue // 2, 0))
        assert window == pytest.approx(share * PRODUCT, rel=1e-3)


def test_poseidon__a_round_trip_goes_a_quarter_of_the_way_to_the_fair_rate() -> None:
    flow = poseidon_flow(PRODUCT / 2)
    # At this delay the fair rate is a 64th of the link's, a 32nd of the flow's.
    queue = int((2_000 + 40_000 * math.log(64) / math.log(1_000)) * RATE / 1e9)
    window = flow.ack(1_000, (queue, 0), acked_bytes=PRODUCT / 2)
    assert window == pytest.approx(PRODUCT / 2 / 2.0, rel=0.01)  # factor_max: 32 ** 0.25 is 2.38
    grown = poseidon_flow(PRODUCT / 4)
    window = grown.ack(1_000, (int(2e-6 * RATE), 0), acked_bytes=PRODUCT / 4)
    assert window == pytest.approx(PRODUCT / 4 * 4**0.25, rel=0.01)


def test_poseidon__is_decided_by_the_slowest_hop_only() -> None:
    one, two = poseidon_flow(), poseidon_flow()
    queue = PRODUCT // 2
    assert one.ack(1_000, (queue, 0)) == two.ack(1_000, (queue // 3, 0), (queue, 0), (0, 0))


def test_poseidon__cuts_spread_over_a_round_trip_make_one_cut() -> None:
    """With `spread` the acknowledgments of a round trip cut as much as one cut would, no more."""
    flow = poseidon_flow()
    flow.rig.params["spread"] = 1
    for part in range(40):  # twice the window, of which half is from before
        window = flow.ack(
            1_000 + part / 2, (20 * PRODUCT, 0), acked_bytes=PRODUCT / 20, acked_segments=10
        )
    assert window == pytest.approx(PRODUCT / 2, rel=0.02)
