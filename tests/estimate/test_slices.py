"""Tests steps on several slices of TPUs: who exchanges what with whom, and what is refused."""

import json

import pytest
from click.testing import CliRunner

from transport.cli import weft
from transport.estimate.collectives import ShapeError, estimate as estimate_on_switch
from transport.estimate.networks import Network, link
from transport.estimate.plan import Group
from transport.estimate.slices import SLICES_WAIT, estimate, spanned, waiting
from transport.estimate.torus import estimate as estimate_on_torus, parsed

TORUS, ICI, DCN = parsed("4x4x8"), link("tpu-v5p"), link("ethernet-50")
SLICES = Network("test", "test", ICI, TORUS.chips, torus=TORUS, slices=4, outside=DCN)
SWITCH = Network("switch", "test", DCN)
SIZE = 1e9


def test_estimate__a_group_inside_a_slice_uses_the_torus() -> None:
    found = estimate(SLICES, "all_gather", SIZE, Group(128, 1))
    assert found == estimate_on_torus(TORUS, ICI, "all_gather", SIZE)


def test_estimate__replicas_of_a_slice_use_the_network() -> None:
    found = estimate(SLICES, "all_reduce", SIZE, Group(4, 128))
    assert found.time_ns == estimate_on_switch(SWITCH, "all_reduce", SIZE, 4, nodes=4).time_ns
    assert found.limited_by == "slices"


def test_estimate__a_group_of_both_sends_a_part_to_other_slices() -> None:
    found = estimate(SLICES, "reduce_scatter", SIZE, Group(512, 1))
    inside = estimate(SLICES, "reduce_scatter", SIZE, Group(128, 1))
    outside = estimate_on_switch(SWITCH, "reduce_scatter", SIZE / 128, 4, nodes=4)
    assert found.time_ns == pytest.approx(inside.time_ns + outside.time_ns)
    assert (found.ranks, spanned(Group(512, 1), 128)) == (512, 4)


def test_estimate__an_all_to_all_over_slices_is_refused() -> None:
    with pytest.raises(ShapeError, match="512 accelerators of several slices"):
        estimate(SLICES, "all_to_all", SIZE, Group(512, 1))


def test_waiting__one_slice_waits_for_none() -> None:
    assert waiting(1) == 1.0
    assert waiting(8) == pytest.approx(1 + 3 * SLICES_WAIT)


STEP = (
    *("train", "llama2-70b", "--gpu", "tpu-v5p", "--torus", "4x4x8", "--slices", "2"),
    *("--between", "ethernet-50", "--data", "64", "--tensor", "4", "--zero", "3"),
)


def test_train__replicas_exchange_gradients_over_the_network() -> None:
    words = ["estimate", *STEP, "--shard", "32", "--recompute", "maxtext-minimal"]
    done = CliRunner().invoke(weft, [*words, "--json", "-"])
    rows = {one["kind"]: one for one in json.loads(done.stdout)["operations"]}
    replicas = rows["gradients of replicas"]
    assert (replicas["ranks"], replicas["nodes"], replicas["limited_by"]) == (2, 2, "slices")
    assert rows["parameters"]["nodes"] == 1


def test_train__slices_are_named_in_the_output() -> None:
    done = CliRunner().invoke(weft, ["estimate", *STEP])
    assert done.exit_code == 0, done.output
    for text in (
        "network: 2 slices joined by ethernet-50, each a torus 4x4x8 of tpu-v5p",
        "twice the bandwidth between slices",
        "note: slices: each doubling makes the step",
    ):
        assert text in done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--slices", "4"), "4 slices of 4x4x8 have 512"),
        (("--between", "tpu-v5p"), "--slices: give --between, a network's link"),
        (("--oversubscription", "2"), "leave out --oversubscription"),
        (("--slices", "0"), "--slices"),
    ],
)
def test_train__wrong_slices_are_one_line(words: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(weft, ["estimate", *STEP, *words])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_train__slices_need_a_shape_and_a_network() -> None:
    for words, says in (
        (("train", "gpt2", "--slices", "2"), "--slices: give the shape of one, --torus"),
        (("train", "gpt2", "--gpu", "tpu-v4", "--torus", "4", "--slices", "2"), "give --between"),
    ):
        done = CliRunner().invoke(weft, ["estimate", *words])
        assert done.exit_code == 2
        assert says in " ".join(done.output.split())
