"""Rows of docs/FIDELITY.md: runs in which a shipped policy must do as its paper says."""

from typing import Any

import numpy as np
import pytest

from transport.sim import Result, run

from .support import needs_fabric

pytestmark = needs_fabric


def link_ns(messages: int, message_bytes: int, rate_bytes_per_s: float = 12.5e9) -> float:
    """How long a link takes for the messages, each in packets of 4,096 bytes and a header of 64."""
    packets = -(-message_bytes // 4_096)
    return messages * (message_bytes + 64 * packets) * 1e9 / rate_bytes_per_s


def test_fidelity__swift_fills_the_link_of_a_large_incast_by_windows_below_one_segment() -> None:
    row = run("incast_swift").summary()
    assert row["finished"]
    assert row["completion_ns"] < 1.1 * link_ns(1_023, 1_000_000)
    assert row["retransmits_per_packet"] < 0.3


def test_fidelity__eqds_fills_it_with_one_product_of_speculation() -> None:
    row = run("incast_1023", {"credit": "eqds:paper"}).summary()
    assert row["finished"]
    assert row["completion_ns"] < 1.1 * link_ns(1_023, 100_000)
    # Each message is shorter than the product, so nearly all packets are trimmed once.
    assert row["retransmits_per_packet"] < 2


def test_fidelity__hpcc_leaves_a_twentieth_of_the_link_and_no_queue() -> None:
    result = run("int_two_flows")
    row = result.summary()
    assert row["finished"]
    assert row["dropped"] == 0 == row["retransmits_per_packet"]
    assert 0.93 < 2 * 25e6 * 1.064 / 12.5 / row["completion_ns"] < 0.96
    (tier,) = [one for one in result.tiers if one["tier"] == "leaf>host"]
    assert tier["queue_bytes_p99"] < 5_000


def test_fidelity__powertcp_fills_the_link_of_an_incast_after_the_first_queue() -> None:
    row = run("int_incast").summary()
    assert row["finished"]
    assert row["completion_ns"] < 1.02 * link_ns(255, 1_000_000)
    assert row["retransmits_per_packet"] == 0


def test_fidelity__the_queue_of_poseidon_is_the_target_of_the_fair_rate() -> None:
    result = run("int_two_flows", {"window": "poseidon:paper"})
    (tier,) = [one for one in result.tiers if one["tier"] == "leaf>host"]
    target_ns = 2_000 + 40_000 * np.log(2) / np.log(1_000)
    step_bytes = 130_000 / 32
    assert abs(tier["queue_bytes_p50"] - step_bytes / 2 - target_ns * 12.5) < step_bytes
    assert result.summary()["completion_ns"] < 1.01 * 2 * 25e6 * 1.064 / 12.5
    assert result.summary()["dropped"] == 0


@pytest.mark.parametrize("paths", [1, 16, 64, 256])
@pytest.mark.parametrize("window", ["hpcc:fabric", "poseidon:fabric", "powertcp:fabric"])
def test_fidelity__telemetry_of_many_paths_keeps_no_flow_small(window: str, paths: int) -> None:
    """A flow whose path never returns within a round trip once kept its estimate for ever."""
    found = run("permutation_128", {"window": window}, changes={"hosts.paths": paths})
    assert found.summary()["finished"]
    assert found.summary()["slowdown_max"] < (7 if paths == 1 else 3)


def test_fidelity__the_queue_of_dctcp_is_at_its_threshold() -> None:
    result = run("dctcp_queue")
    (tier,) = [one for one in result.tiers if one["tier"] == "leaf>host"]
    assert 17 * 1_500 < tier["queue_bytes_p50"] < 23 * 1_500
    assert result.summary()["dropped"] == 0


def settled(result: Result, name: str) -> Any:
    """A sampled value in the second half of a run, before its last flow ends."""
    values = result.samples[name]
    return values[len(values) // 2 : len(values) * 9 // 10]


def test_fidelity__timely_settles_at_its_fixed_point_between_the_thresholds() -> None:
    result = run("timely_queue")
    base_ns = 4 * 4_000 + 2 * 1_200 + 200  # four wires, a packet and an acknowledgment on two links
    rtt_ns = base_ns + np.median(settled(result, "queue_bytes_max")) / 1.25
    # Zhu et al., CoNEXT 2016: T_low * (1 + N * delta / (beta * C)), here 50 us * 1.5.
    assert 0.95 * 75_000 < rtt_ns < 1.05 * 75_000
    rates = settled(result, "pacing_bytes_per_s")
    assert rates.min() > 0.98 * rates.max()
    row = result.summary()
    assert row["dropped"] == 0
    assert row["completion_ns"] < 1.01 * 4 * 100e6 * 1_500 / 1_432 / 1.25


def test_fidelity__dcqcn_keeps_the_queue_of_its_fixed_point() -> None:
    queue_bytes = settled(run("dcqcn_queue"), "queue_bytes_max")
    # The marking share at which the fluid model of Zhu et al., CoNEXT 2016, stands still.
    wanted_bytes = 5_000 + dcqcn_share(flows=2) * 195_000 / 0.01
    assert 20_000 < wanted_bytes < 20_300
    assert 0.85 * wanted_bytes < np.median(queue_bytes) < 1.15 * wanted_bytes


def dcqcn_share(flows: int) -> float:
    """The share of marks at which the model's rates do not change: packets of 1 kB at 40 Gb/s."""
    rate, increase, stage = 5e6 / flows, 5e3, 1e4  # packets a second, and packets
    timer_s, alpha_s, mark_s, fast = 55e-6, 55e-6, 50e-6, 5

    def excess(share: float) -> float:
        """How much faster marks lower the rate than timer and counter raise it."""
        kept = 1 - share
        marked = (1 - kept ** (mark_s * rate)) / mark_s  # notifications a second
        alpha = 1 - kept ** (alpha_s * rate)
        by_bytes = share / (kept**-stage - 1)
        by_time = share / (kept ** (-timer_s * rate) - 1)
        slow = kept ** (fast * stage) * by_bytes + kept ** (fast * timer_s * rate) * by_time
        gap = increase * rate * slow / marked  # target rate less rate
        return float(rate * alpha / 2 * marked - gap / 2 * rate * (by_bytes + by_time))

    low, high = 1e-7, 0.1
    for _ in range(100):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    return low


def test_fidelity__bbr_fills_the_link_and_drains_its_queue_in_each_gain_cycle() -> None:
    result = run("bbr_single")
    row = result.summary()
    assert row["dropped"] == 0
    rate = 12.5e6
    assert row["completion_ns"] < 1.05 * 150e6 * 1_500 / 1_432 / rate * 1e9
    product_bytes = 0.01014 * rate  # two wires of 5 ms, and a packet on both links
    assert settled(result, "inflight_bytes").max() < 2 * product_bytes
    queue_bytes = settled(result, "queue_bytes_max")
    # Samples every 5 ms: 17 of them are a cycle of eight round trips.
    cycles = queue_bytes[: len(queue_bytes) // 17 * 17].reshape(-1, 17)
    assert cycles.min(axis=1).max() <= 1_496
    # One round trip at 1.25 times the rate leaves a quarter of the product in the queue.
    assert 0.9 < np.median(cycles.max(axis=1)) / (0.25 * product_bytes) < 1.1


def test_fidelity__plb_parts_flows_that_share_an_uplink() -> None:
    plb, single = run("plb_permutation"), run("plb_permutation", {"path": "single"})
    assert plb.summary()["completion_ns"] < 0.65 * single.summary()["completion_ns"]
    (ours,), (theirs,) = (
        [tier for tier in one.tiers if tier["tier"] == "leaf>spine"] for one in (plb, single)
    )
    assert ours["imbalance"] < 0.5 * theirs["imbalance"]
