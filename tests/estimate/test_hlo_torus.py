"""Tests `weft estimate hlo --torus`: which part of a torus groups of devices are, and times."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.estimate.hlo_programs import CHAIN, LAYERS, program
from transport.cli import weft
from transport.estimate.collectives import ShapeError
from transport.estimate.hlo.tori import part_of_group, part_of_pair
from transport.estimate.networks import link
from transport.estimate.torus import estimate, parsed


def run(tmp_path: Path, text: str, *words: str) -> Result:
    file = tmp_path / "step.hlo"
    file.write_text(text)
    return CliRunner().invoke(weft, ["estimate", "hlo", str(file), *words])


@pytest.mark.parametrize(
    ("shape", "group", "part", "is_exact"),
    [
        ("4x4", range(4), "4", True),
        ("4x4", range(0, 16, 4), "4", True),
        ("4x4", range(16), "4x4", True),
        ("4x4", (0, 1), "2:open", True),
        ("4x4", (0, 1, 4, 5), "2x2:open", True),
        ("4x4", (4, 5, 6, 7, 12, 13, 14, 15), "4x3:open=y", False),
        ("4x4x2", range(16, 32), "4x4", True),
        ("4x4:open", range(4), "4:open", True),
        ("4x4", (0, 5), "2x2:open", False),
        ("4x4", (7,), "1", True),
        ("4x4x8:twisted", range(128), "4x4x8:twisted", True),
        ("4x4x8:twisted", range(4), "4", False),
    ],
)
def test_group__is_the_smallest_part_with_all_its_devices(
    shape: str, group: range, part: str, is_exact: bool
) -> None:
    found = part_of_group(parsed(shape), group)
    expected = parsed(part)
    assert [one.length for one in found.torus.axes] == [one.length for one in expected.axes]
    assert found.torus.is_twisted == expected.is_twisted
    assert [one.ways for one in found.torus.axes] == [one.ways for one in expected.axes]
    assert found.is_exact == is_exact


@pytest.mark.parametrize(
    ("shape", "pair", "hops"),
    [("8x4", (0, 1), 1), ("8x4", (0, 7), 1), ("8x4", (0, 12), 5), ("8x4:open", (0, 7), 7)],
)
def test_pair__goes_the_shortest_way(shape: str, pair: tuple[int, int], hops: int) -> None:
    assert part_of_pair(parsed(shape), *pair).hops == hops
    alone = part_of_pair(parsed(shape), 0, 1).time_ns(link("tpu-v4"), "send", 1e6)
    found = part_of_pair(parsed(shape), *pair).time_ns(link("tpu-v4"), "send", 1e6)
    assert found == pytest.approx(hops * alone)


def test_broadcast__takes_as_long_as_a_gather() -> None:
    part = part_of_group(parsed("4x4"), range(16))
    expected = estimate(parsed("4x4"), link("tpu-v4"), "all_gather", 1e6).time_ns
    assert part.time_ns(link("tpu-v4"), "broadcast", 1e6) == expected
    with pytest.raises(ShapeError):
        part.time_ns(link("tpu-v4"), "scan", 1e6)


def test_command__groups_run_along_axes(tmp_path: Path) -> None:
    """Pairs are along x (2), fours along y (4): gathers of 32 MiB at 2 x 100 GB/s, 125.8 us."""
    done = run(tmp_path, LAYERS, "--gpu", "tpu-v5p", "--torus", "2x4")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("test: 8 devices on a torus 2x4 of tpu-v5p, 3 collectives\n")
    assert "126.8 us" in done.output  # with two hops of 0.5 us
    assert "336.5 us" in done.output
    assert "the last axis of a mesh lies along its first axes" in done.output
    assert "% of the TPU's peak: --efficiency" in done.output
    assert "GPU" not in done.output


def test_command__groups_that_skip_devices_are_noted(tmp_path: Path) -> None:
    body = """\
  %x = f32[1024]{0} parameter(0)
  ROOT %sum = f32[1024]{0} all-reduce(%x), channel_id=1, \
replica_groups={{0,3},{1,2},{4,7},{5,6}}, use_global_device_ids=true, to_apply=%add"""
    done = run(tmp_path, program(body), "--gpu", "tpu-v5e", "--torus", "2x4")
    assert done.exit_code == 0, done.output
    assert "groups that do not fill axes of the torus" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--torus", "4x4"), "has 8 devices, and the torus 4x4 has 16"),
        (("--torus", "2x4", "--gpus-per-node", "4"), "--torus has no switches"),
        (("--torus", "big"), "give up to 4 lengths"),
        (("--inside", "tpu-v5p"), "weft estimate train, hlo and collective (--torus SHAPE)"),
    ],
)
def test_command__mistakes_are_one_line(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = run(tmp_path, LAYERS, "--gpu", "tpu-v5p", *words)
    assert done.exit_code == 2
    assert said in done.output


def test_command__without_a_torus_says_how(tmp_path: Path) -> None:
    done = run(tmp_path, LAYERS, "--gpu", "tpu-v5p")
    assert "which train and hlo estimate with --torus" in done.output


def test_command__chains_of_fusions_are_one_collective(tmp_path: Path) -> None:
    """XLA for TPUs repeats a gather in each fusion that computes beside it, and slices sums.

    The product of 4,096 x 4,096 values takes 599 us, and the gather less.
    """
    words = ("--gpu", "tpu-v5p", "--torus", "2x4", "--efficiency", "0.5", "--json", "-")
    found = json.loads(run(tmp_path, CHAIN, *words).output)
    gather, scatter = found["collectives"]
    assert (gather["name"], gather["operation"], gather["is_async"]) == (
        "start",
        "all-gather",
        True,
    )
    assert (scatter["name"], scatter["operation"]) == ("scattered", "reduce-scatter")
    part = part_of_group(parsed("2x4"), range(8))
    for one, operation in ((gather, "all_gather"), (scatter, "reduce_scatter")):
        expected = part.time_ns(link("tpu-v5p"), operation, 2 * 4096**2)
        assert one["time_ns"] == pytest.approx(expected)
    assert gather["exposed_ns"] == 0
    assert scatter["exposed_ns"] == pytest.approx(scatter["time_ns"])
    assert found["totals"]["computation_ns"] == pytest.approx(2 * 4096**3 / (459e12 * 0.5) * 1e9)
    assert found["flops"] == {"bf16": 2 * 4096**3}
    assert not any("custom calls" in note for note in found["notes"])
