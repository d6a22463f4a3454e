"""What window events say of the switch ports on the way, in simulated networks."""

from pathlib import Path

import numpy as np
import pytest

from congestion.api import WINDOW_EVENT
from transport import native
from transport.compiler import compile_policy
from transport.compiler.emit import event_bytes
from transport.compiler.library import load
from transport.compiler.source import load as load_source
from transport.policies.dumbbell import Flow, Link, Plan, run as run_dumbbell
from transport.policies.recording import parse
from transport.sim import run

from .support import judge, needs_fabric, scenario

pytest.importorskip("numba")
pytestmark = needs_fabric

WITHOUT_HOPS = WINDOW_EVENT.dtype.fields["hops"][1]  # type: ignore[index]
LEAVES = "hosts = 4\nhosts_per_leaf = {below}\nspines = 2\n"
RATE, NIC_RATE = 1_250_000_000, 2_500_000_000


def failures(folder: Path, condition: str, below: int, threads: int = 1) -> int:
    """How many flows of a permutation saw an event with the condition."""
    made = scenario(LEAVES.format(below=below), "[[workload]]\nsize_bytes = 500_000\n")
    result = run(made, {"window": str(judge(folder, condition))}, threads=threads)
    assert result.finished
    return int(result.totals["policies_failed"])


@pytest.mark.parametrize(("below", "hops"), [(4, 1), (1, 3)])
def test_hops__are_the_switch_ports_on_the_way(tmp_path: Path, below: int, hops: int) -> None:
    assert failures(tmp_path, f"event.kind == 0 and event.hops != {hops}", below) == 0
    assert failures(tmp_path, f"event.kind == 0 and event.hops == {hops}", below) == 4
    assert failures(tmp_path, "event.kind != 0 and event.hops != 0", below) == 0
    last = hops - 1
    assert failures(tmp_path, f"event.hop_timestamp_ns[{last}] >= event.now_ns", below) == 0
    assert failures(tmp_path, f"event.hop_tx_bytes[{last}] > 400_000", below) == 4
    assert failures(tmp_path, f"event.hop_link_bytes_per_s[{hops}] != 0", below) == 0
    if hops == 1:  # the hosts have the port's rate, and the port has one flow
        assert failures(tmp_path, "event.hop_queue_bytes[0] != 0", below) == 0
    if hops == 3:
        late = "event.hops == 3 and event.hop_timestamp_ns[1] <= event.hop_timestamp_ns[0]"
        assert failures(tmp_path, late, below) == 0


def test_hops__do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    made = scenario(LEAVES.format(below=2), "[[workload]]\nsize_bytes = 500_000\n")
    policy = {"window": str(judge(tmp_path, "event.hop_tx_bytes[0] > 1_000_000_000"))}
    one, two = (run(made, policy, threads=threads).fingerprint for threads in (1, 2))
    assert one == two


def test_hops__match_a_queue_that_is_known(tmp_path: Path) -> None:
    """A lone flow with a full window, most of which waits at the slow link."""
    plan = Plan(
        paths=[Link(bytes_per_s=RATE, delay_ns=25_000)],
        flows=[Flow(from_host=0, to_host=1)],
        limit_ns=5_000_000,
        recording_bytes_max=1 << 24,
    )
    source = judge(tmp_path, "event.hops > 8")
    library = compile_policy(source, tmp_path / "judge.so")
    plan.choose("window", str(library), [])
    for family, name in (("path", "oblivious"), ("loss", "rack")):
        plan.choose(family, name, [str(native.POLICY_DIRECTORY)])
    report = run_dumbbell(plan)
    assert (report.violation, report.policies_failed) == ("", 0)
    steps = parse(report.recording).of("window")
    events = np.concatenate([step.event for step in steps if step.hook == 1])
    assert (events["hops"] == 2).all()
    assert (events["hop_link_bytes_per_s"][:, :3] == [RATE, NIC_RATE, 0]).all()
    # The second link is faster than the first, so nothing waits there.
    assert (events["hop_queue_bytes"][:, 1] == 0).all()
    assert (np.diff(events["hop_timestamp_ns"][:, 0]) > 0).all()
    # The slow link sends without a pause, so bytes and times of two samples give its rate.
    sent, took = (
        np.diff(events[name][20:, 0].astype(float)) for name in ("hop_tx_bytes", "hop_timestamp_ns")
    )
    assert sent * 1e9 / took == pytest.approx(RATE, rel=1e-3)
    # A packet is at the second port when the first has sent it and the wire has carried it.
    between = events["hop_timestamp_ns"][:, 1] - events["hop_timestamp_ns"][:, 0]
    packet_ns = plan.segment_bytes * 10**9 // RATE
    assert between.max() - (25_000 - 2 * 6_250) <= packet_ns
    window = 64 * plan.segment_bytes
    assert 0 < events["hop_queue_bytes"][20:, 0].max() < window


def test_hops__are_gathered_only_for_a_policy_that_reads_them(tmp_path: Path) -> None:
    for condition, size in (("event.kind > 2", WITHOUT_HOPS), ("event.hops > 8", None)):
        size = size or WINDOW_EVENT.size_bytes
        folder = tmp_path / str(size)
        folder.mkdir()
        policy = load_source(judge(folder, condition))
        assert event_bytes(policy) == size
        library = load(compile_policy(policy, tmp_path / f"judge_{size}.so"))
        assert library.descriptor.event_bytes == size
