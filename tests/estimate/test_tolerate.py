"""Tests what latency and bandwidth steps tolerate, against counts by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings, strategies as st

from transport.cli import weft
from transport.estimate.gpus import Gpu
from transport.estimate.models import Model
from transport.estimate.networks import Link, Network, Protocol, link, of_links
from transport.estimate.plan import Plan
from transport.estimate.sharing import Sharing
from transport.estimate.tolerate import (
    NO_TRAFFIC,
    NOT_MONOTONE,
    largest,
    later,
    tolerance,
    with_link,
)
from transport.estimate.training import faster, train

MODEL = Model("flat", 4, 1_024, 16, 4_096, 1_000, 512, tied=True)
GPU = Gpu("test", 1e14, 80e9, 1e15, 1.0)
# All gradients are one bucket, which is full when backward ends: nothing hides its sum.
EXPOSED = Plan(data=2, global_batch=2, bucket_bytes=1 << 40)


def network(rate: float = 1e9, step_ns: float = 1e3) -> Network:
    return Network("test", "test", Link(rate, (Protocol("only", 0.0, step_ns, 1.0),)))


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, ["estimate", "tolerate", *map(str, words)])


@pytest.mark.parametrize("share", [0.01, 0.05, 1.0])
def test_tolerance__of_one_exposed_sum_is_as_by_hand(share: float) -> None:
    """Two ranks: a ring has two steps, and each GPU sends as many bytes as the bucket has."""
    found = tolerance(MODEL, EXPOSED, GPU, network(), share)
    (row,) = found.reference.rows
    assert row.count == 1
    assert row.each_ns == pytest.approx(2 * 1e3 + row.bytes)  # at 1 GB/s
    assert found.reference.exposed_ns == pytest.approx(row.each_ns)
    more_ns = share * found.reference.step_ns
    assert found.limit_ns == pytest.approx(found.reference.step_ns + more_ns)
    assert found.latency_ns.value == pytest.approx(more_ns / 2, rel=1e-3)
    expected = row.bytes / (row.bytes + more_ns) * 1e9
    assert found.bytes_per_s.value == pytest.approx(expected, rel=1e-3)


def test_tolerance__links_suffice_if_their_own_step_is_short_enough() -> None:
    around = tolerance(MODEL, EXPOSED, GPU, network(), 0.05)
    assert around.bytes_per_s.value is not None
    assert around.latency_ns.value is not None
    rate, extra_ns = around.bytes_per_s.value, around.latency_ns.value
    links = {
        "given": network().between,
        "enough": network(1.01 * rate).between,
        "too narrow": network(0.99 * rate).between,
        "late": network(1e9, 1e3 + 0.99 * extra_ns).between,
        "too late": network(1e9, 1e3 + 1.01 * extra_ns).between,
        "both": network(1.01 * rate, 1e3 + 0.99 * extra_ns).between,
    }
    found = tolerance(MODEL, EXPOSED, GPU, network(), 0.05, links)
    assert {name for name in links if found.suffices(name)} == {"given", "enough", "late"}
    assert found.links["given"] == found.reference.step_ns


def test_tolerance__without_traffic_between_nodes_has_no_bound() -> None:
    inside = of_links("ethernet-100", "nvlink4", 8)
    found = tolerance(MODEL, EXPOSED, GPU, inside, 0.05, {"slow": link("ethernet-10")})
    assert (found.latency_ns.value, found.latency_ns.why) == (None, NO_TRAFFIC)
    assert (found.bytes_per_s.value, found.bytes_per_s.why) == (None, NO_TRAFFIC)
    assert found.suffices("slow")


@given(
    zero=st.sampled_from([0, 1, 2, 3]),
    data=st.sampled_from([2, 16]),
    rate=st.floats(1e8, 1e11),
    step_ns=st.floats(0.0, 1e5),
)
@settings(max_examples=20, deadline=None)
def test_tolerance__is_where_the_step_reaches_the_limit(
    zero: int, data: int, rate: float, step_ns: float
) -> None:
    """What is tolerated keeps the limit, and a little more does not."""
    plan = Plan(data=data, global_batch=data, zero=zero)
    base = network(rate, step_ns)
    found = tolerance(MODEL, plan, GPU, base, 0.05)
    extra_ns, needed = found.latency_ns.value, found.bytes_per_s.value
    assert extra_ns is not None
    assert needed is not None

    def step(other: Network) -> float:
        return train(MODEL, plan, GPU, other).step_ns

    assert step(later(base, extra_ns)) <= found.limit_ns < step(later(base, 1.001 * extra_ns))
    slower = rate / needed
    assert step(faster(base, 1 / slower)) <= found.limit_ns
    assert step(faster(base, 1 / (1.001 * slower))) > found.limit_ns


@given(st.floats(0.01, 0.5), st.floats(1.1, 3.0))
@settings(max_examples=10, deadline=None)
def test_tolerance__a_longer_step_tolerates_more(share: float, times: float) -> None:
    less, more = (tolerance(MODEL, EXPOSED, GPU, network(), one) for one in (share, times * share))
    assert less.latency_ns.value is not None
    assert more.latency_ns.value is not None
    assert less.latency_ns.value < more.latency_ns.value
    assert less.bytes_per_s.value is not None
    assert more.bytes_per_s.value is not None
    assert less.bytes_per_s.value > more.bytes_per_s.value


def test_largest__ends_always() -> None:
    assert largest(lambda x: x, 1.0, 1e12, 1e6).value == pytest.approx(1e6, rel=1e-3)
    assert largest(lambda x: 5.0, 1.0, 1e12, 10.0).why == NO_TRAFFIC
    assert largest(lambda x: 5.0, 1.0, 1e12, 1.0).value == 0.0
    assert largest(lambda x: 2.0 if x > 1e3 else 1.0, 1.0, 1e9, 1.5).value == pytest.approx(
        1e3, rel=1e-3
    )


def test_largest__a_function_that_decreases_is_not_judged() -> None:
    for wrong in (lambda x: 1e13 - x, lambda x: 0.0 if 10 < x < 1e11 else x):
        found = largest(wrong, 1.0, 1e12, 1e6)
        assert (found.value, found.why) == (None, NOT_MONOTONE)


def test_with_link__only_links_of_networks_are_shared_and_pass_pcie() -> None:
    base = of_links("ethernet-400", "nvlink4", 8, 2, "pcie4")
    other = with_link(base, link("infiniband-200"))
    assert other.between.bytes_per_s == pytest.approx(24.84e9 * 2 / 8)
    assert other.sharing == base.sharing
    near = with_link(base, link("nvlink4"))
    assert near.between == link("nvlink4")
    assert near.sharing == replace(base.sharing, pcie_bytes_per_s=0.0)
    assert with_link(network(), link("tpu-v4")).sharing == Sharing()


def test_command__prints_both_tables() -> None:
    done = run("gpt2", "GPT2-medium", "--gpus", "8", "--gpus", "64", "--inside", "nvlink4")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["gpt2", "8", "yes"],
        ["gpt2", "64", "yes"],
        ["gpt2-medium", "8", "yes"],
        ["gpt2-medium", "64", "yes"],
    ]
    assert NO_TRAFFIC in lines[1]
    assert "gpt2-medium, 64" in lines[6]
    (narrow,) = (line for line in lines if line.startswith("ethernet-100"))
    assert "no, +" in narrow
    for words in ("reference: the step on nvlink4 and ethernet-400", "note: not calibrated"):
        assert words in done.output


def test_command__json_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run(
        *("gpt2", "--gpus", "2", "--bucket", "10GB", "--step", "10 %", "--link", "nvlink4"),
        *("--plot", tmp_path / "p.png", "--json", tmp_path / "t.json"),
    )
    assert done.exit_code == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "t.json").read_text())
    (step,) = found["steps"]
    assert (step["model"], step["gpus"], found["share"]) == ("gpt2", 2, 0.1)
    assert step["limit_ns"] == pytest.approx(1.1 * step["step_ns"])
    assert step["latency_ns"]["value"] == pytest.approx(0.05 * step["step_ns"], rel=1e-3)
    assert step["links"]["nvlink4"]["suffices"]
    assert set(found["links"]) == {"nvlink4"}


def test_command__own_links_and_plans(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[wire]\nbytes_per_s = 1e6\nlatency = "network"\n')
    done = run(
        *("gpt2", "--gpus", "16", "--tensor", "2", "--zero", "1", "--inside", "nvlink4"),
        *("--links-file", tmp_path / "own.toml", "--link", "wire", "--json", "-"),
    )
    assert done.exit_code == 0
    (step,) = json.loads(done.output)["steps"]
    assert (step["plan"]["data"], step["plan"]["tensor"]) == (8, 2)
    assert not step["links"]["wire"]["suffices"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Missing argument"),
        (("nope",), "no model nope"),
        (("gpt2", "--gpus", "0"), "--gpus"),
        (("gpt2", "--gpus", "8", "--tensor", "3"), "multiple of the 3 GPUs"),
        (("gpt2", "--gpus", "12", "--inside", "nvlink4"), "--gpus: 12 GPUs in all"),
        (("gpt2", "--gpus", "8", "--batch", "9"), "--batch: 9"),
        (("gpt2", "--step", "5"), "such as 5%"),
        (("gpt2", "--step", "0%"), "such as 5%"),
        (("gpt2", "--step", "nan%"), "such as 5%"),
        (("gpt2", "--gpu", "h300"), "no GPU h300"),
        (("gpt2", "--gpu", "none.toml"), "cannot read none.toml"),
        (("gpt2", "--link", "pigeons"), "no link pigeons"),
        (("gpt2", "--between", "tpu-v4"), "torus"),
        (("gpt2", "--data", "8"), "No such option"),
        (("custom",), "needs --"),
        (("gpt2", *("--gpus", "2") * 65), "give fewer"),
    ],
)
def test_command__mistakes_are_usage_errors(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert said in done.output
    assert isinstance(done.exception, SystemExit)


def test_command__tries_links_between_nodes_and_speaks_of_tpus() -> None:
    words = ("gpt2", "--gpu", "tpu-v5p", "--gpus", "8")
    done = CliRunner().invoke(weft, ["estimate", "tolerate", *words])
    assert done.exit_code == 0, done.output
    rows = done.output.split("\n\n")[1].splitlines()[1:]
    kinds = {link(row.split()[0]).kind for row in rows}
    assert kinds == {"network"}
    assert "TPUs" in done.output
    assert "GPU" not in done.output
