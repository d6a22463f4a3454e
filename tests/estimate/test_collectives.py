"""Tests the models of collectives against counts by hand, and published figures."""

import pytest

from transport.estimate.collectives import (
    ALGORITHMS,
    ShapeError,
    algorithm_bytes_per_s,
    estimate,
    terms,
)
from transport.estimate.networks import Link, Network, Protocol, of_links
from transport.ground.collectives import bus_factor

GB = 10**9


def flat(step_ns: float = 1_000, rate: float = GB) -> Network:
    """Every GPU is a node; one protocol."""
    return Network("flat", "test", Link(rate, (Protocol("only", 500, step_ns, 1.0),)))


# A chunk as a part of the size: in trees and chains, each step delays the first data by one.
CHUNK = 131_072 / 1_000_000


@pytest.mark.parametrize(
    ("operation", "algorithm", "ranks", "steps", "moved"),
    [
        ("all_reduce", "ring", 4, 6, 1.5),
        ("all_reduce", "tree", 8, 6, 2.0 + 5 * CHUNK),
        ("all_reduce", "tree", 5, 6, 2.0 + 5 * CHUNK),
        ("all_reduce", "tree", 2, 2, 1.0 + CHUNK),  # each is the root of one of two trees
        ("all_reduce", "tree", 3, 4, 1.5 + 3 * CHUNK),
        ("all_gather", "ring", 8, 7, 7 / 8),
        ("all_gather", "pat", 8, 3, 7 / 8),
        ("reduce_scatter", "pat", 5, 3, 4 / 5),
        ("broadcast", "ring", 5, 4, 1.0 + 3 * CHUNK),
        ("reduce", "ring", 5, 4, 1.0 + 3 * CHUNK),
        ("all_to_all", "pairs", 8, 1, 7 / 8),
        ("send", "pairs", 2, 1, 1.0),
    ],
)
def test_terms__one_gpu_a_node(
    operation: str, algorithm: str, ranks: int, steps: int, moved: float
) -> None:
    found = terms(operation, algorithm, ranks, ranks, 1_000_000)
    assert (found.inside_steps, found.inside_bytes) == (0, 0)
    assert found.between_steps == steps
    assert found.between_bytes == pytest.approx(moved * 1_000_000)
    time_ns = estimate(flat(), operation, 1_000_000, ranks, algorithm=algorithm).time_ns
    assert time_ns == pytest.approx(500 + 1_000 * steps + moved * 1_000_000)


@pytest.mark.parametrize(("operation", "factor"), [("all_reduce", 2), ("all_gather", 1)])
def test_terms__a_nodes_gpus_share_what_enters_it(operation: str, factor: int) -> None:
    """16 GPUs on 2 nodes: a ring goes through all, and 8 NICs carry what crosses."""
    found = terms(operation, "ring", 16, 2, 1_600)
    assert found.inside_bytes == pytest.approx(factor * 1_500)
    assert found.between_bytes == pytest.approx(factor * 1_500 / 8)
    assert found.inside_steps + found.between_steps == pytest.approx(factor * 15)


def test_terms__on_one_node_nothing_is_between_nodes() -> None:
    for operation, algorithms in ALGORITHMS.items():
        for algorithm in algorithms:
            ranks = 2 if operation == "send" else 8
            found = terms(operation, algorithm, ranks, 1, 1_000)
            assert (found.between_steps, found.between_bytes) == (0, 0)
            assert found.inside_bytes > 0


def test_terms__one_rank_needs_nothing() -> None:
    found = terms("all_reduce", "ring", 1, 1, 1_000)
    assert (found.inside_steps, found.inside_bytes, found.between_steps) == (0, 0, 0)


def test_estimate__the_better_algorithm_and_protocol_win() -> None:
    quick, full = Protocol("quick", 0, 1_000, 0.5), Protocol("full", 0, 10_000, 1.0)
    network = Network("two", "test", Link(GB, (quick, full)))
    small, large = (estimate(network, "all_reduce", size, 64) for size in (8, 10**9))
    assert (small.algorithm, small.protocol, small.limited_by) == ("tree", "quick", "latency")
    assert (large.algorithm, large.protocol, large.limited_by) == ("ring", "full", "between")


def test_estimate__a_published_figure() -> None:
    """7 billion gradients in bf16, 64 GPUs at 50 GB/s each: 0.55 s."""
    found = estimate(flat(rate=50 * GB), "all_reduce", 14e9, 64, algorithm="ring")
    assert found.time_ns / 1e9 == pytest.approx(0.55, rel=0.01)
    assert bus_factor("all_reduce", 64) * algorithm_bytes_per_s(found) == pytest.approx(
        50 * GB, rel=0.01
    )


def test_estimate__more_ranks_bytes_or_latency_never_help() -> None:
    network = of_links("ethernet-400", "nvlink4")
    for operation in ("all_reduce", "all_gather", "all_to_all"):
        times = [estimate(network, operation, size, 64).time_ns for size in (8, 10**6, 10**9)]
        assert times == sorted(times)
        wider = [estimate(network, operation, 10**6, ranks).time_ns for ranks in (16, 64, 512)]
        assert wider == sorted(wider)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("all_redce", None, 8, 1), "no operation all_redce: known are all_reduce"),
        (("all_gather", "tree", 8, 1), "no all_gather by tree: known are all_reduce (ring, tree)"),
        (("all_reduce", "ring", 4, 8), "4 ranks on 8 nodes: a node has at least one rank"),
    ],
)
def test_estimate__wrong_questions_are_one_line(
    words: tuple[str, str | None, int, int], said: str
) -> None:
    operation, algorithm, ranks, nodes = words
    with pytest.raises(ShapeError) as caught:
        estimate(flat(), operation, 1, ranks, algorithm=algorithm, nodes=nodes)
    assert str(caught.value).startswith(said)


def test_nvls__each_gpu_sends_its_data_once_and_the_sum_of_its_part() -> None:
    """8 GPUs of a node: 9/8 of the data at 0.85 of 370.8 GB/s, beside 25 us and the filling."""
    network = of_links("infiniband-400", "nvlink4", 8)
    found = estimate(network, "all_reduce", GB, 8)
    bytes_ns = 9 / 8 / (0.85 * 370.8) * 1e9
    assert (found.algorithm, found.protocol, found.limited_by) == ("nvls", "Simple", "inside")
    assert found.bytes_ns == pytest.approx(bytes_ns)
    assert found.latency_ns == pytest.approx(25_000 + (25_000 * bytes_ns) ** 0.5)


def test_nvls__only_where_switches_add() -> None:
    assert (
        estimate(of_links("infiniband-200", "nvlink3", 8), "all_reduce", GB, 8).algorithm != "nvls"
    )
    with pytest.raises(ShapeError, match="no all_gather by nvls"):
        terms("all_gather", "nvls", 8, 1, GB)
    with pytest.raises(ShapeError, match="no all_reduce by nvls"):
        estimate(of_links("infiniband-200", "nvlink3", 8), "all_reduce", GB, 8, algorithm="nvls")


def test_tree__has_latencies_of_its_own() -> None:
    """256 A100s in nodes of 8: 2 x 5 steps of 5 us between nodes, 2 x 7 of 0.6 us inside."""
    found = estimate(of_links("infiniband-200", "nvlink3", 8, 4), "all_reduce", 8, 256)
    assert (found.algorithm, found.protocol) == ("tree", "LL")
    assert found.latency_ns == pytest.approx(6_600 + 10 * 5_000 + 14 * 600, rel=0.01)
