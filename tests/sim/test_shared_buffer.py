"""Buffers that the queues of a switch share: dynamic thresholds, bounds, messages, threads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.support import needs_fabric, scenario
from transport.sim.errors import ScenarioError
from transport.sim.result import Result
from transport.sim.run import Simulation, run
from transport.sim.tables import remarks

pytestmark = needs_fabric

PACKET = 4_160
BUFFER = 2_000_000
# Hosts 0 to 11 send to 12 to 15 over one switch, three to each, more than the links carry.
NETWORK = "hosts = 16\nhosts_per_leaf = 16\nspines = 1\nmark_full_bytes = 0\n"
REST = """
[hosts]
window_bytes_max = 8_000_000
[policies]
window = "fixed:window_bytes=4000000"
loss = "fixed"
path = "single"
[samples]
every_ns = 2_000
links = "leaf0>host*"
"""


def measured(targets: int, network: str, *, threads: int = 1) -> Result:
    """A run with so many receivers, each of which has three senders; it ends before they do."""
    flows = [
        f'[[workload]]\npattern = "incast"\nto = 3\nsize_bytes = 4_000_000\n'
        f'hosts = "{3 * one}-{3 * one + 2},{12 + one}"\n'
        for one in range(targets)
    ]
    made = scenario(NETWORK + network, "".join([REST, *flows]))
    return run(made, changes={"limit_ns": 300_000}, threads=threads)


def queues(found: Result) -> np.ndarray:
    """The queues to hosts 12 to 15, from when they have filled: [time, port]."""
    sampled = found.scenario.sampled_ports()
    names = [found.scenario.network.port_name(int(port)) for port in sampled]
    columns = [names.index(f"leaf0>host{host}") for host in range(12, 16)]
    return found.samples["queue_bytes"].reshape(-1, len(names))[75:145, columns]


@pytest.mark.parametrize("alpha", [0.5, 1, 4])
@pytest.mark.parametrize("targets", [1, 2, 4])
def test_shared_buffer__long_queues_share_it_as_the_formula_says(
    targets: int, alpha: float
) -> None:
    """Choudhury and Hahne: n long queues hold alpha / (1 + n alpha) of the buffer each."""
    found = measured(targets, f"buffer_bytes = {BUFFER}\nbuffer_alpha = {alpha}")
    share = BUFFER * alpha / (1 + targets * alpha)
    held = np.median(queues(found), axis=0)[:targets]
    assert np.abs(held - share).max() < 3 * PACKET * (1 + alpha), (held, share)
    assert BUFFER // 4 < found.buffers[0] <= BUFFER
    assert found.summary()["buffer_bytes_max"] == found.buffers[0]
    assert found.summary()["dropped"] > 0
    assert any("shared buffers: at most" in line for line in remarks(found))


def test_shared_buffer__a_queue_alone_gets_more_than_a_part_of_the_memory() -> None:
    shared = measured(1, f"buffer_bytes = {BUFFER}\nbuffer_alpha = 4")
    apart = measured(1, f"queue_bytes = {BUFFER // 16}")
    assert shared.summary()["dropped"] < apart.summary()["dropped"]
    assert apart.buffers.size == 0
    assert "buffer_bytes_max" not in apart.summary()


def test_shared_buffer__is_empty_again_after_trims_losses_and_a_link_that_was_down() -> None:
    """What a queue gives back is what it took: a later burst finds the whole buffer."""
    rest = (
        'trim = true\nloss = 0.01\n[[workload]]\npattern = "incast"\nsize_bytes = 300_000\n'
        '[[events]]\nlink = "leaf0>host0"\nat_ns = 20_000\nup = false\n'
        '[[events]]\nlink = "leaf0>host0"\nat_ns = 60_000\nup = true\n'
        '[[workload]]\npattern = "incast"\nto = 1\nsize_bytes = 300_000\nstart_ns = 20_000_000\n'
    )
    network = f"hosts = 8\nhosts_per_leaf = 8\nspines = 1\nbuffer_bytes = 100_000\n{rest}"
    found = run(scenario(network), check=True)
    assert found.good, found.violation
    assert found.summary()["trimmed"] > 0
    assert 40_000 < found.buffers[0] <= 100_000


def test_shared_buffer__fingerprints_without_one_are_those_of_before_there_was_one() -> None:
    assert "buffer_" not in scenario("hosts = 4").content()
    assert "buffer_alpha" in scenario("hosts = 4\nbuffer_bytes = 100_000").content()


@pytest.mark.parametrize("ecmp", ["hashed", "adaptive"])
@pytest.mark.parametrize("pause", ["", "pause_bytes = 60_000\nresume_bytes = 30_000\n"])
def test_shared_buffer__threads_do_not_change_a_run(ecmp: str, pause: str) -> None:
    network = (
        f'hosts = 32\nhosts_per_leaf = 8\nspines = 4\necmp = "{ecmp}"\n{pause}'
        "buffer_bytes = 200_000\nbuffer_alpha = 0.5"
    )
    work = (
        '[[workload]]\npattern = "permutation"\nsize_bytes = 400_000\n'
        '[[workload]]\npattern = "incast"\nsize_bytes = 50_000\n'
    )
    one, two = (run(scenario(network, work), threads=threads, check=True) for threads in (1, 2))
    assert one.good, one.violation
    assert one.fingerprint == two.fingerprint
    assert one.buffers.tolist() == two.buffers.tolist()


@pytest.mark.parametrize(
    ("network", "why"),
    [
        ("buffer_bytes = 5_000", "a queue may hold 2,500 bytes of it, and a segment has 4,160"),
        ("buffer_bytes = 100_000\nbuffer_alpha = 0.01", "raise it or buffer_alpha"),
        ("buffer_bytes = 100_000\nbuffer_alpha = 0", "buffer_alpha"),
        ("buffer_bytes = -1", "buffer_bytes"),
        ("buffer_alpha = 2", "buffer_alpha: has no effect without a shared buffer"),
    ],
)
def test_shared_buffer__too_small_a_buffer_is_an_error(network: str, why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        scenario(f"hosts = 4\n{network}").check()


def test_shared_buffer__memory_is_estimated_by_switch_not_by_port() -> None:
    """64 MB for a switch of 64 ports: its packets take memory once."""
    found = Simulation(scenario("hosts = 1_024\nhosts_per_leaf = 32\nbuffer_bytes = 64_000_000"))
    assert found.estimated_bytes < 8_000_000_000


def test_shared_buffer__a_resume_without_pfc_says_what_is_missing() -> None:
    with pytest.raises(ScenarioError, match="resume_bytes: needs pause_bytes, as PFC is off"):
        scenario("hosts = 4\nresume_bytes = 100")
