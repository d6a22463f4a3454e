"""Tests the fit of networks: known ones are found again, and files of measurements are read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.trace.writer import channel, communicator, operation, rank_of
from transport.cli import weft
from transport.estimate.calibrate import FitError, fit
from transport.estimate.check import compared, summary_of
from transport.estimate.collectives import estimate
from transport.estimate.networks import Link, Network, Protocol, Range, load
from transport.estimate.profile import text_of
from transport.estimate.samples import Sample, SamplesError, of_bench, of_trace
from transport.trace.store import open_store

pytest.importorskip("scipy")

SIZES = [8 * 8**power for power in range(10)]


def known(two: bool) -> Network:
    full = Protocol("full", 20_000, 9_000, 1.0)
    quick = Protocol("quick", 5_000, 2_000, 0.25)
    return Network("known", "test", Link(10e9, (quick, full) if two else (full,)))


def measured(network: Network, ranks: tuple[int, ...], noise: float, seed: int) -> list[Sample]:
    rng = np.random.default_rng(seed)
    made = []
    for name in ("all_reduce", "all_gather"):
        for count in ranks:
            for size in SIZES:
                time_ns = estimate(network, name, size, count, nodes=count).time_ns
                for _ in range(3):
                    factor = float(np.exp(rng.normal(0, noise)))
                    made.append(Sample(name, count, count, size, time_ns * factor))
    return made


@pytest.mark.parametrize("two", [False, True])
def test_fit__finds_a_known_network_and_holds_for_more_ranks(two: bool) -> None:
    truth = known(two)
    found = fit(measured(truth, (4, 16), 0.01, 3), "x", "y")
    assert len(found.network.between.protocols) == (2 if two else 1)
    assert found.network.between.bytes_per_s == pytest.approx(10e9, rel=0.03)
    for name in ("all_reduce", "all_gather"):
        for size in SIZES:
            one = estimate(found.network, name, size, 256, nodes=256).time_ns
            assert one == pytest.approx(
                estimate(truth, name, size, 256, nodes=256).time_ns, rel=0.1
            )
    assert found.network.calibrated is not None
    assert found.network.calibrated.median_error < 0.01
    assert found.network.calibrated.ranks == (4, 16)


def test_fit__intervals_have_the_truth_and_grow_with_the_noise() -> None:
    widths = []
    for noise in (0.01, 0.1):
        found = fit(measured(known(False), (2, 4, 8, 16), noise, 5), "x", "y")
        rate = next(one for one in found.numbers if one.name.endswith("rate"))
        assert rate.low <= 10e9 * 1.05
        assert rate.high >= 10e9 * 0.95
        widths.append(rate.high - rate.low)
    assert widths[0] < widths[1]


def test_fit__one_number_of_ranks_is_said() -> None:
    samples = [
        one for one in measured(known(False), (8,), 0.01, 1) if one.operation == "all_gather"
    ]
    found = fit(samples, "x", "y")
    assert "the same number of steps" in found.notes[0]
    assert not any("of a call" in one.name for one in found.numbers)
    assert max(map(abs, found.errors)) < 0.05


def test_fit__too_few_measurements_are_one_line() -> None:
    with pytest.raises(FitError, match="3 different operations and sizes: at least 4"):
        fit([Sample("all_reduce", 2, 2, size, 10.0) for size in (1, 2, 3)], "x", "y")


def test_profile__is_read_as_it_was_written(tmp_path: Path) -> None:
    found = fit(measured(known(True), (4, 16), 0.01, 3), 'a "name"', "y").network
    file = tmp_path / "p.toml"
    file.write_text(text_of(found))
    again = load(file)
    for size in SIZES:
        assert estimate(again, "all_reduce", size, 64).time_ns == pytest.approx(
            estimate(found, "all_reduce", size, 64).time_ns, rel=1e-3
        )
    assert (again.name, again.calibrated is not None) == ('a "name"', True)


def rows(**more: Any) -> dict[str, Any]:
    row = {"contender": "weft", "operation": "all_reduce", "size_bytes": 8, "time_us": 2.5}
    return {"gpus": 2, "rows": [row | more]}


def test_bench__rows_of_one_contender(tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    file.write_text(json.dumps(rows()))
    assert of_bench(file, "weft") == [Sample("all_reduce", 2, 2, 8.0, 2_500.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no result of python -m bench nccl"),
        ("[]", "is no result of python -m bench nccl"),
        (json.dumps(rows(time_us=None)), "is no result of python -m bench nccl"),
        (json.dumps(rows(contender="Socket")), "has no rows of weft, but of Socket"),
        (json.dumps(rows(time_us=0)), "has no operation of several ranks with a size and a time"),
    ],
)
def test_bench__mistakes_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "b.json"
    file.write_text(text)
    with pytest.raises(SamplesError) as caught:
        of_bench(file, "weft")
    assert said in str(caught.value)


def test_trace__an_operation_lasts_from_its_last_rank_to_its_end(tmp_path: Path) -> None:
    for rank in range(2):
        process = rank_of(tmp_path, rank, 2)
        comm = communicator(process, 5, rank, 2)
        op = operation(process, comm, "AllReduce", 0, 5, count=100)
        channel(process, comm, op, 1 - rank, 400, 10 + 20 * rank, 110)
        process.write()
    with open_store(tmp_path) as store:
        assert of_trace(store, tmp_path) == [Sample("all_reduce", 2, 2, 400.0, 80.0, "ring")]


def test_trace__without_operations_is_one_line(tmp_path: Path) -> None:
    rank_of(tmp_path, 0, 1).write()
    with open_store(tmp_path) as store, pytest.raises(SamplesError, match="has no operation that"):
        of_trace(store, tmp_path)


def test_calibrate__a_simulated_trace_predicts_a_larger_job(tmp_path: Path) -> None:
    """Rings of 4 and 8 hosts in the simulator; 16 hosts are predicted within 10 %."""
    folders = [simulated(tmp_path, ranks) for ranks in (4, 8)]
    file = tmp_path / "sim.toml"
    words = ["estimate", "calibrate", *map(str, folders), "-o", str(file)]
    done = CliRunner().invoke(weft, words)
    assert done.exit_code == 0, done.output
    assert "error of the fit" in done.output
    with open_store(simulated(tmp_path, 16)) as store:
        larger = of_trace(store, tmp_path)
    for one in larger:
        time_ns = estimate(
            load(file), one.operation, one.size_bytes, one.ranks, algorithm="ring"
        ).time_ns
        assert time_ns == pytest.approx(one.time_ns, rel=0.1)


def simulated(folder: Path, ranks: int) -> Path:
    """The trace of a job of several AllReduces."""
    operations = ", ".join(
        f'{{name = "o{at}", collective = "all_reduce_ring", size_bytes = {size}}}'
        for at, size in enumerate((10_000, 100_000, 1_000_000, 10_000_000))
    )
    scenario = folder / f"{ranks}.toml"
    scenario.write_text(
        f"[network]\nhosts = {ranks}\nhosts_per_leaf = {ranks}\nspines = 1\n"
        f'queue_bytes = "1 MB"\n[[workload]]\npattern = "steps"\nlaunch_ns = 1_000\nrepeats = 2\n'
        f"operations = [{operations}]\n"
    )
    done = CliRunner().invoke(weft, ["sim", str(scenario), "--trace", str(folder / f"t{ranks}")])
    assert done.exit_code == 0, done.output
    return folder / f"t{ranks}"


def test_fit__small_operations_that_a_launch_limits() -> None:
    full = Protocol("full", 3_000, 500, 1.0)
    network = Network("known", "test", Link(100e9, (full,), launch_ns=25_000))
    found = fit(measured(network, (2, 4, 8), 0.02, 3), "again", "test").network
    assert found.between.launch_ns == pytest.approx(25_000, rel=0.05)
    assert estimate(found, "all_reduce", 8, 8).limited_by == "launch"
    assert estimate(found, "all_reduce", 1 << 30, 8).limited_by == "between"


def test_bench__each_round_is_a_sample(tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    again = [rows(time_us=time)["rows"][0] for time in (2.0, 3.0, 4.0)]
    file.write_text(json.dumps(rows() | {"rounds": again}))
    assert [one.time_ns for one in of_bench(file, "weft")] == [2_000, 3_000, 4_000]


def test_check__errors_count_beside_the_spread_of_repeats() -> None:
    network = Network(
        "known",
        "test",
        Link(1e9, (Protocol("full", 0, 0, 1.0),)),
        calibrated=Range((8, 1_000), (2, 2), 0.0, 0.0),
    )
    # An AllReduce of two ranks sends its bytes once.
    times = ("send", 1_000, (900, 1_000, 1_100)), ("send", 2_000, (1_000, 2_600, 2_500))
    samples = [Sample(name, 2, 2, size, float(ns)) for name, size, each in times for ns in each]
    small, large = compared(network, samples)
    assert (small.error, small.extrapolated, small.within(0.05)) == (0.0, False, True)
    assert large.error == pytest.approx(2_000 / 2_500 - 1)
    assert (large.extrapolated, large.within(0.05)) == (True, True), "repeats differ by more"
    assert summary_of([small, large]).within_15 == 1.0
