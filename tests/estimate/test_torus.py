"""Tests collectives on a torus against counts by hand, a simulated routing, and published rates."""

import itertools
import json
from collections import defaultdict
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

from transport.cli import weft
from transport.estimate import collectives
from transport.estimate.collectives import ShapeError
from transport.estimate.networks import Link, Network, NetworkError, Protocol, link, of_links
from transport.estimate.torus import OPERATIONS, Axis, Torus, estimate, parsed, part_of, terms
from transport.estimate.twisted import loads, neighbours

GB = 10**9
PLAIN = Link(GB, (Protocol("only", 0, 0, 1.0),))
SLOW = Link(GB, (Protocol("only", 100, 1_000, 1.0),))

axes = st.builds(Axis, st.sampled_from("xyz"), st.integers(1, 9), st.booleans())
toruses = st.lists(axes, min_size=1, max_size=3).map(tuple).map(Torus)
operations = st.sampled_from(OPERATIONS)
sizes = st.floats(1, 1e12)


@pytest.mark.parametrize(
    ("shape", "operation", "hops", "moved"),
    [
        ("8", "all_gather", 4, 7 / 8 / 2),
        ("8:open", "all_gather", 7, 7 / 8),
        ("4x4x4", "all_reduce", 2 * 6, 2 * 63 / 64 / 6),
        ("4x4x8:open=z", "reduce_scatter", 2 + 2 + 7, 127 / 128 / 5),
        ("2x2", "all_gather", 2, 3 / 4 / 2),
        ("4", "all_to_all", 2, 1 / 2),
        ("4:open", "all_to_all", 3, 1.0),
        ("5", "all_to_all", 2, 6 / 5 / 2),
        ("4x8", "all_to_all", 6, 1.0),
        ("4x4", "send", 1, 1.0),
        ("1x1", "all_reduce", 0, 0),
    ],
)
def test_terms__by_hand(shape: str, operation: str, hops: int, moved: float) -> None:
    found = terms(parsed(shape), operation, 1_000)
    assert found.inside_steps == hops
    assert found.inside_bytes == pytest.approx(moved * 1_000)
    time_ns = estimate(parsed(shape), SLOW, operation, 1_000).time_ns
    assert time_ns == pytest.approx((100 + 1_000 * hops if hops else 0) + moved * 1_000)


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("length", range(2, 10))
def test_crossing__is_what_the_busiest_link_carries(length: int, is_closed: bool) -> None:
    """Each pair's message takes the shortest way; if both ways are as short, half takes each."""
    is_ring = is_closed and length > 2
    loads = [0.0] * length * 2  # of the links to the right, then of those to the left

    def send(begin: int, hops: int, step: int, part: float) -> None:
        for hop in range(hops):
            loads[(begin + step * hop) % length + (length if step < 0 else 0)] += part

    for begin, end in itertools.permutations(range(length), 2):
        right = (end - begin) % length
        if not is_ring:
            send(begin, abs(end - begin), 1 if end > begin else -1, 1 / length)
            continue
        for hops, step in ((right, 1), (length - right, -1)):
            if 2 * hops <= length:
                send(begin, hops, step, (0.5 if 2 * hops == length else 1) / length)
    assert Axis("x", length, is_closed).crossing == pytest.approx(max(loads))


@pytest.mark.parametrize(
    ("name", "shape", "reduced", "bisection"),
    [("tpu-v5e", "16x16", 51.2e12, 1.6e12), ("tpu-v6e", "16x16", 102.4e12, 3.2e12)],
)
def test_estimate__published_rates_of_pods(
    name: str, shape: str, reduced: float, bisection: float
) -> None:
    """Rates of all chips as Cloud TPU states them: of all-reduce, and of a half to the other."""
    pod, size = parsed(shape), 1e12
    moved = 2 * size * (pod.chips - 1)
    assert moved / estimate(pod, link(name), "all_reduce", size).bytes_ns * 1e9 == pytest.approx(
        reduced
    )
    across = pod.chips / 2 * size / 2
    assert across / estimate(pod, link(name), "all_to_all", size).bytes_ns * 1e9 == pytest.approx(
        bisection
    )


def test_estimate__published_all_reduce_of_tpu_v4() -> None:
    """1.1 PB/s for 4,096 chips."""
    pod = parsed("16x16x16")
    found = estimate(pod, link("tpu-v4"), "all_reduce", 1e12)
    assert 2e12 * (pod.chips - 1) / found.bytes_ns * 1e9 == pytest.approx(1.1e15, rel=0.01)


@pytest.mark.parametrize("lengths", [(4, 4, 8), (8, 4, 4), (4, 8, 8), (3, 3, 6), (8, 8, 16)])
def test_twisted__loads_all_links_equally(lengths: tuple[int, ...]) -> None:
    """Messages from one chip to all, split over all shortest ways, by link."""
    start: tuple[int, ...] = (0, 0, 0)
    hops, ways, order = {start: 0}, {start: 1}, [start]
    for chip in order:
        for near in neighbours(chip, lengths).values():
            if near not in hops:
                hops[near], ways[near] = hops[chip] + 1, 0
                order.append(near)
            if hops[near] == hops[chip] + 1:
                ways[near] += ways[chip]
    carried = dict.fromkeys(order, 1.0)
    load: defaultdict[tuple[int, int], float] = defaultdict(float)
    for chip in reversed(order[1:]):
        for (axis, way), before in neighbours(chip, lengths).items():
            if hops[before] == hops[chip] - 1:
                part = carried[chip] * ways[before] / ways[chip]
                load[axis, -way] += part
                carried[before] += part
    each, diameter = loads(lengths)
    assert list(load.values()) == pytest.approx([each * len(order)] * 6)
    assert diameter == max(hops.values())


def test_twisted__speeds_up_an_all_to_all_only() -> None:
    """By 1.75 for 4x4x8 and 1.39 for 4x8x8: the sum of distances over 6 links, 220/3 and 184."""
    for shape, factor in (("4x4x8", 128 / (220 / 3)), ("4x8x8", 256 / 184)):
        plain, twisted = parsed(shape), parsed(f"{shape}:twisted")
        times = [estimate(one, PLAIN, "all_to_all", GB).time_ns for one in (plain, twisted)]
        assert times[0] / times[1] == pytest.approx(factor)
        sums = [estimate(one, PLAIN, "all_reduce", GB).time_ns for one in (plain, twisted)]
        assert sums[0] == sums[1]


@given(st.integers(3, 64), st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]), sizes)
def test_ring__is_a_torus_of_one_dimension(ranks: int, operation: str, size: float) -> None:
    """The ring of a switch sends one way with the rate of both links of the torus."""
    both = Network("ring", "test", replace(PLAIN, bytes_per_s=2 * GB))
    ring = collectives.estimate(both, operation, size, ranks, algorithm="ring")
    found = estimate(Torus((Axis("x", ranks),)), PLAIN, operation, size)
    assert found.time_ns == pytest.approx(ring.time_ns)


@given(toruses, operations, sizes, st.integers(0, 3), st.booleans())
def test_axis__of_length_one_changes_nothing(
    torus: Torus, operation: str, size: float, at: int, is_closed: bool
) -> None:
    more = Torus((*torus.axes[:at], Axis("w", 1, is_closed), *torus.axes[at:]))
    assert estimate(more, SLOW, operation, size) == estimate(torus, SLOW, operation, size)


@given(toruses, operations, sizes, st.floats(1, 100), st.floats(1, 100))
def test_estimate__bandwidth_never_hurts_and_bytes_never_help(
    torus: Torus, operation: str, size: float, faster: float, more: float
) -> None:
    base = estimate(torus, SLOW, operation, size).time_ns
    quick = replace(SLOW, bytes_per_s=GB * faster)
    assert estimate(torus, quick, operation, size).time_ns <= base
    assert estimate(torus, SLOW, operation, size * more).time_ns >= base


@settings(max_examples=200)
@given(toruses, operations, sizes)
def test_estimate__wrap_around_never_hurts(torus: Torus, operation: str, size: float) -> None:
    closed = Torus(tuple(replace(one, is_closed=True) for one in torus.axes))
    slower = estimate(torus, SLOW, operation, size).time_ns
    assert estimate(closed, SLOW, operation, size).time_ns <= slower * (1 + 1e-9)


@pytest.mark.parametrize(
    "text", ["4x4x8", "4x4x8:open", "4x4x8:open=z", "2x4:open=x", "7", "8x4x4:twisted"]
)
def test_parsed__and_written_are_the_same(text: str) -> None:
    assert str(parsed(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4by4", "give up to 4 lengths"),
        ("", "give up to 4 lengths"),
        ("2x2x2x2x2", "give up to 4 lengths"),
        ("4x4:open=z", "its axes are x,y"),
        ("0x4", "0 accelerators"),
        ("9999999x9999999", "give 1 to"),
        ("4x4:twisted", "a twisted torus has the lengths k, k, 2k"),
        ("4x4x16:twisted", "a twisted torus has the lengths k, k, 2k"),
        ("32x64x64:twisted", "at most 32,768 accelerators"),
        ("4x4x8:open:twisted", "give up to 4 lengths"),
    ],
)
def test_parsed__mistakes_are_one_line(text: str, said: str) -> None:
    with pytest.raises(ShapeError, match=said):
        parsed(text)


def test_along__some_axes() -> None:
    assert str(parsed("4x5x6:open=z").along("z, X")) == "6x4:open=z"
    with pytest.raises(ShapeError, match="cannot be used alone"):
        parsed("4x4x8:twisted").along("x")
    for wrong in ("w", "x,x", ""):
        with pytest.raises(ShapeError, match="must be different ones of x,y"):
            parsed("4x4").along(wrong)


def test_links__of_a_torus_are_no_link_of_a_switch() -> None:
    with pytest.raises(NetworkError, match="links the neighbours of a torus, not GPUs"):
        of_links("tpu-v4")


def test_command__a_torus_and_sizes_after_the_operation() -> None:
    words = ["estimate", "collective", "allreduce", "64 MB", "1K", "--torus", "4x4x8"]
    done = CliRunner().invoke(weft, [*words, "--link", "TPU-v4", "--axes", "x,z", "--json", "-"])
    found = json.loads(done.output)
    assert [one["size_bytes"] for one in found["estimates"]] == [64e6, 1024]
    assert (found["along"], found["estimates"][0]["ranks"]) == (["x", "z"], 32)
    for more, said in (
        ([], "--torus needs --link"),
        (["--link", "tpu-v4", "--ranks", "8"], "leave out --ranks"),
        (["--link", "ici"], "no link ici: known are nvlink2"),
    ):
        wrong = CliRunner().invoke(weft, [*words, *more])
        assert (wrong.exit_code, said in wrong.output) == (2, True)


@pytest.mark.parametrize("words", [("train", "gpt2"), ("plan", "gpt2", "--gpus=8", "--batch=8")])
def test_command__steps_name_the_commands_that_know_tori(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(weft, ["estimate", *words, "--inside", "tpu-v5p"])
    assert done.exit_code == 2
    assert "weft estimate train, hlo and collective (--torus SHAPE)" in " ".join(
        done.output.split()
    )


def lengths(torus: Torus) -> list[tuple[str, int, bool]]:
    return [(one.name, one.length, one.is_closed) for one in torus.axes]


def test_part_of__groups_have_whole_axes_and_a_part_of_the_last() -> None:
    """4x4x8, numbered along x first: tensor 4 is x, data 32 is y and z."""
    torus = parsed("4x4x8")
    assert lengths(part_of(torus, 4, 1)) == [("x", 4, True)]
    assert lengths(part_of(torus, 32, 4)) == [("y", 4, True), ("z", 8, True)]
    assert lengths(part_of(torus, 128, 1)) == [("x", 4, True), ("y", 4, True), ("z", 8, True)]
    assert lengths(part_of(torus, 8, 1)) == [("x", 4, True), ("y", 2, False)]
    assert lengths(part_of(torus, 2, 1)) == [("x", 2, False)]
    assert lengths(part_of(torus, 8, 16)) == [("z", 8, True)]
    assert lengths(part_of(parsed("4x4:open"), 4, 4)) == [("y", 4, False)]
    assert part_of(torus, 1, 1).chips == 1


@pytest.mark.parametrize(("shape", "ranks", "stride"), [
    ("4x4x8", 16, 8),  # every second one of y
    ("4x4x8", 3, 1),
    ("4x4x8", 256, 1),
    ("4x4x8:twisted", 4, 1),
])  # fmt: skip
def test_part_of__others_are_refused(shape: str, ranks: int, stride: int) -> None:
    with pytest.raises(ShapeError, match="do not fill its axes"):
        part_of(parsed(shape), ranks, stride)


STEP = (
    *("train", "llama2-70b", "--gpu", "tpu-v4", "--torus", "4x4x8"),
    *("--data", "32", "--tensor", "4", "--zero", "3"),
)


def test_train__collectives_of_a_step_are_those_of_the_axes() -> None:
    """Tensor: 2 (3/4) S along x at two links of 45 GB/s; gathers: (31/32) S at four, y and z."""
    done = CliRunner().invoke(weft, ["estimate", *STEP, "--json", "-"])
    rows = {one["kind"]: one for one in json.loads(done.stdout)["operations"]}
    tensor, gather = rows["tensor"], rows["parameters"]
    assert (tensor["ranks"], gather["ranks"]) == (4, 32)
    hop_ns = 500.0
    bytes_ns = 2 * 3 / 4 * tensor["bytes"] / (2 * 45e9) * 1e9
    assert tensor["each_ns"] == pytest.approx(bytes_ns + 2 * 2 * hop_ns)
    bytes_ns = 31 / 32 * gather["bytes"] / (4 * 45e9) * 1e9
    assert gather["each_ns"] == pytest.approx(bytes_ns + (2 + 4) * hop_ns)


def test_train__a_torus_is_named_in_the_output() -> None:
    done = CliRunner().invoke(weft, ["estimate", *STEP])
    assert done.exit_code == 0, done.output
    for text in ("torus 4x4x8 of tpu-v4; links to neighbours only", "twice the bandwidth of the"):
        assert text in done.output
    assert "usually linked as a torus" not in done.output
    assert "between nodes" not in done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--data", "64"), "--data: 256 accelerators in all (data x tensor): the torus 4x4x8 has"),
        (("--pipeline", "2"), "--pipeline: 2: on a torus, only data, tensor and shard"),
        (("--between", "ethernet-400"), "--torus has no switches: leave out --between"),
        (("--gpu", "h100"), "nvlink4 leads to a switch"),
        (("--gpu", "h100", "--inside", "tpu-v4", "--compare", "pcie4"), "leave out --compare"),
        (("--torus", "4x4xq"), "torus: 4x4xq: give up to 4 lengths"),
        (("--torus", "8x4x4"), "32 accelerators that share data do not fill"),
    ],
)
def test_train__what_is_no_step_on_a_torus(words: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(weft, ["estimate", *STEP, *words])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


@pytest.mark.parametrize("command", ["plan", "tolerate", "simulate"])
def test_torus__other_commands_say_which_one_has_it(command: str) -> None:
    done = CliRunner().invoke(weft, ["estimate", command, "llama3-8b", "--torus", "2x4"])
    assert done.exit_code == 2
    assert "`weft estimate train MODEL --torus 2x4` estimates a step on a torus" in done.output
