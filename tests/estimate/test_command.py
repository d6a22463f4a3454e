"""Tests `weft estimate` as users call it."""

import json
import math
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from transport.cli import weft
from transport.estimate.computation import of_gpu
from transport.estimate.curves import curves
from transport.estimate.gpus import gpu
from transport.estimate.models import PRESETS
from transport.estimate.networks import Slowdown, load, of_links
from transport.estimate.plan import Plan
from transport.estimate.training import train

LLAMA = ("train", "llama3-8b", "--data", "64", "--zero", "3", "--inside", "nvlink4")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, ["estimate", *map(str, words)])


def test_collective__prints_a_row_for_each_size_and_number_of_ranks() -> None:
    done = run("collective", "all_reduce", "--ranks", "8", "--ranks", "64", "--size", "1 MB")
    assert done.exit_code == 0
    assert [line.split()[:3] for line in done.output.splitlines()[1:3]] == [
        ["8", "1", "MB"],
        ["64", "1", "MB"],
    ]
    assert "note: not calibrated" in done.output


def test_collective__has_ranges_and_says_what_ethernet_is() -> None:
    words = ("collective", "all_reduce", "64KiB", "--ranks", "16", "--inside", "nvlink4")
    found = {}
    for link in ("infiniband-400", "ethernet-400"):
        done = run(*words, "--between", link)
        assert "8 of 10 published AllReduces would be inside" in done.output
        assert ("RoCE v2" in done.output) == (link == "ethernet-400")
        (found[link],) = json.loads(run(*words, "--between", link, "--json", "-").output)[
            "estimates"
        ]
    # A call of LL between nodes takes 15 us more over RoCE, beside what trees wait for chunks.
    more = found["ethernet-400"]["latency_ns"] - found["infiniband-400"]["latency_ns"]
    assert 15_000 <= more <= 17_500
    for one in found.values():
        assert one["range"]["low_ns"] < one["time_ns"] < one["range"]["high_ns"]
    assert "small operations over RoCE" in found["ethernet-400"]["range"]["wider"][0]
    inside = run(*words[:3], "--ranks", "8", "--inside", "nvlink4").output
    assert "RoCE v2" not in inside


def test_collective__json_has_the_terms() -> None:
    found = json.loads(run("collective", "send", "--size", "8", "--json", "-").output)
    (one,) = found["estimates"]
    assert one["terms"]["between_bytes"] == 8
    assert found["network"]["name"] == "ethernet-400"


def test_train__says_what_is_exposed_and_what_would_help() -> None:
    done = run(*LLAMA, "--between", "ethernet-10")
    assert done.exit_code == 0
    said = (
        "exposed communication",
        "twice the bandwidth between nodes",
        "64 GPUs, ",
        "bottleneck: communication of parameters (between)",
        "fitted to published runs (of hopper)",
        "range: ",
        "note: not calibrated",
    )
    for words in said:
        assert words in done.output


def test_train__json_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run(*LLAMA, "--gantt", tmp_path / "g.png", "--json", tmp_path / "s.json")
    assert done.exit_code == 0
    assert (tmp_path / "g.png").stat().st_size > 5_000
    found = json.loads((tmp_path / "s.json").read_text())
    assert found["plan"]["zero"] == 3
    assert {row["kind"] for row in found["operations"]} == {
        *("gradients", "parameters", "embeddings"),
    }
    assert found["step_ns"] == pytest.approx(
        found["compute_ns"] + found["bubble_ns"] + found["exposed_ns"]
    )


@pytest.mark.parametrize(
    "words",
    [
        ("llama3-8b", "--gpu", "h100", "--data", "8", "--zero", "3", "--inside", "nvlink4"),
        ("llama2-7b", "--gpu", "tpu-v4", "--torus", "2x2x4", "--data", "16", "--zero", "3"),
    ],
)
def test_train__a_run_by_hand(words: tuple[str, ...]) -> None:
    more = ("--tokens", "1T", "--price", "2")
    found = json.loads(run("train", *words, *more, "--json", "-").stdout)
    sequence, plan = found["model"]["sequence"], found["plan"]
    steps = math.ceil(1e12 / (plan["global_batch"] * sequence))
    days = steps * found["step_ns"] / 86_400e9
    assert found["days"] == pytest.approx(days)
    assert found["gpu_hours"] == pytest.approx(24 * days * plan["data"])
    assert found["cost"] == pytest.approx(48 * days * plan["data"])
    printed = run("train", *words, *more).output
    assert f"{days:,.1f} (" in printed
    assert "cost is in the currency of --price" in printed
    assert "GPU-hours" not in run("train", *words).output
    assert "--price needs --tokens" in run("train", *words, "--price", "2").output


def test_train__says_that_gpus_are_degrees() -> None:
    done = run("train", "llama3-8b", "--gpus", "64")
    assert done.exit_code == 2
    assert "give --data, or let `weft estimate plan` search them" in done.output


def test_train__says_why_exposed_is_more_than_in_all() -> None:
    words = ("train", "mixtral-8x7b", "--data", "16", "--tensor", "2", "--expert", "8")
    more = ("--sequence-parallel", "--inside", "nvlink4", "--gpu", "h100", "--batch", "64")
    done = run(*words, *more)
    assert "exposed is by how much the step would be shorter without it: more than" in done.output
    assert "exposed is" not in run("train", "llama3-8b", "--zero", "3", "--data", "8").output


def test_train__says_that_a_step_may_not_fit() -> None:
    """85.34 of 85.52 GB: less is left than published peaks were above estimates."""
    words = (
        *("llama3-70b", "--gpu", "h100", "--batch", "8", "--zero", "3", "--data", "4"),
        *("--recompute", "full", "--sequence-parallel", "--tensor", "4"),
    )
    done = run("train", *words)
    assert done.exit_code == 0
    assert "may not fit: a GPU has 85.52 GB, of which 0.21 % are left" in done.output
    found = json.loads(run("train", *words, "--json", "-").stdout)
    assert (found["fits"], found["fits_surely"]) == (True, False)
    assert found["memory_high_bytes"] == pytest.approx(1.09 * found["memory_bytes"]["total"])
    assert "fit" not in run("train", "llama3-8b", "--zero", "3", "--data", "64").output.replace(
        "fitted", ""
    )


def test_train__without_a_link_inside_each_gpu_is_a_node() -> None:
    assert (
        "note: without --inside these are 8 nodes of one GPU each"
        in run("train", "gpt2", "--data", "8").output
    )
    assert "nodes of one GPU" not in run("train", "gpt2").output
    assert "nodes of one GPU" not in run(*LLAMA).output


def test_names__are_found_as_people_type_them() -> None:
    typed = ("train", "Llama-3.1-8B", "--gpu", "H100", "--data", "8", "--inside", "NVLink4")
    plain = ("train", "llama3-8b", "--gpu", "h100", "--data", "8", "--inside", "nvlink4")
    assert run(*typed).output == run(*plain).output
    sizes = ("--size", "1G", "--algorithm", "Ring")
    plain_sizes = ("--size", "1 GiB", "--algorithm", "ring")
    typed_output = run("collective", "allreduce", *sizes).output
    assert typed_output == run("collective", "all_reduce", *plain_sizes).output


@pytest.mark.parametrize(
    ("bucket", "expected"), [("25", 25 << 20), ("25 MB", 25_000_000), ("1G", 1 << 30)]
)
def test_train__a_bucket_without_a_unit_is_of_mebibytes(bucket: str, expected: int) -> None:
    """As bucket_cap_mb of PyTorch's DDP."""
    found = json.loads(run("train", "gpt2", "--bucket", bucket, "--json", "-").output)
    assert found["plan"]["bucket_bytes"] == expected


def test_train__says_how_much_of_a_long_step_was_scheduled() -> None:
    words = ("--layers", "8", "--pipeline", "4", "--batch")
    note = "microbatches were scheduled; all later rounds take the same time"
    assert f"note: 12 of 4,000 {note}" in run("train", "gpt2", *words, "4000").output
    assert note not in run("train", "gpt2", *words, "40").output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), {"recompute": False, "selective": ""}),
        (("--recompute",), {"recompute": True, "selective": ""}),
        (("--recompute", "full"), {"recompute": True, "selective": ""}),
        (("--recompute", "selective"), {"recompute": False, "selective": "attention"}),
        (("--recompute", "selective-op"), {"recompute": False, "selective": "operators"}),
    ],
)
def test_train__recompute_alone_means_full(words: tuple[str, ...], said: dict[str, object]) -> None:
    plan = json.loads(run("train", "gpt2", *words, "--json", "-").output)["plan"]
    assert {key: plan[key] for key in said} == said


def test_train__sizes_of_ones_own() -> None:
    sizes = (
        *("--layers", "12", "--hidden", "768", "--heads", "12"),
        *("--ffn", "3072", "--vocabulary", "50257", "--sequence", "1024"),
    )
    assert run("train", "custom", *sizes).exit_code == 0
    done = run("train", "custom", *sizes[2:])
    assert (done.exit_code, "custom needs --layers" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "llama9"), "no model llama9: known are gpt2"),
        (("train", "gpt2", "--gpu", "h300"), "no GPU h300: known are v100-16"),
        (("train", "gpt2", "--tensor", "5"), "must divide the 12 heads"),
        (("train", "gpt2", "--data", "1000000000"), "'--data': 1000000000 is not in the range"),
        (("train", "gpt2", "--recompute", "some"), "'some' is not one of 'none', 'selective'"),
        (("train", "gpt2", "--bucket", "lots"), "--bucket: 'lots': expected bytes"),
        (("train", "gpt2", "--between", "string"), "no link string: known are nvlink2"),
        (("train", "gpt2", "--gantt", "x.doc"), "--gantt x.doc: give a name that ends in one of"),
        (("collective", "all_reduce", "--size", "9 pounds"), "--size: '9 pounds': expected bytes"),
        (("collective", "gossip"), "no operation gossip: known are all_reduce"),
    ],
)
def test_estimate__mistakes_are_one_line(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert said in done.output.splitlines()[-1]


def test_check__marks_what_is_extrapolated(tmp_path: Path) -> None:
    rows = [
        {"contender": "weft", "operation": "all_reduce", "size_bytes": size, "time_us": size / 1e3}
        for size in (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    ]
    two, four = tmp_path / "two.json", tmp_path / "four.json"
    two.write_text(json.dumps({"gpus": 2, "rows": rows}))
    four.write_text(json.dumps({"gpus": 4, "rows": rows}))
    profile = tmp_path / "p.toml"
    assert run("calibrate", two, "-o", profile).exit_code == 0
    same, other = (run("check", file, "--network", profile) for file in (two, four))
    assert "100 % are within" in same.output
    assert "extrapolated" not in same.output
    assert "note: * extrapolated: the network was fitted to 1 kB to 10 MB, 2 ranks" in other.output
    collective = run("collective", "all_reduce", "--ranks", "4", "--network", profile)
    assert "note: * extrapolated" in collective.output
    found = json.loads(run("check", four, "--network", profile, "--json", "-").output)
    assert {row["extrapolated"] for row in found["rows"]} == {True}


def test_calibrate__takes_how_much_computation_and_operations_slow_each_other(
    tmp_path: Path,
) -> None:
    rows = [
        {"contender": "weft", "operation": "all_reduce", "size_bytes": size, "time_us": size / 1e3}
        for size in (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    ]
    times, beside, profile = (tmp_path / name for name in ("t.json", "beside.json", "p.toml"))
    times.write_text(json.dumps({"gpus": 2, "rows": rows}))
    slow = [
        {"contender": "weft", "slowdown": {"computation": value, "communication": 0.9}}
        for value in (1.5, 1.25, 3.0)
    ]
    beside.write_text(json.dumps({"rows": slow}))
    done = run("calibrate", times, "--beside", beside, "-o", profile)
    assert "computation takes 1.50 times as long, and operations 1.00" in done.output
    assert load(profile).slowdown == Slowdown(1.5, 1.0)
    done = run("calibrate", times, "--beside", beside, "-o", profile, "--contender", "NVLink")
    assert done.exit_code == 2
    for text in ("{}", '{"rows": [{"contender": "weft", "slowdown": 2}]}', "x"):
        beside.write_text(text)
        done = run("calibrate", times, "--beside", beside, "-o", profile)
        assert "is not a result of python -m bench step --beside" in done.output
    for text in ("NaN", '"2"', "true", "0", "101"):
        row = f'{{"contender": "weft", "slowdown": {{"computation": {text}, "communication": 1}}}}'
        beside.write_text(f'{{"rows": [{row}]}}')
        done = run("calibrate", times, "--beside", beside, "-o", profile)
        assert "must be a number, at most 100" in done.output
    beside.write_text('{"rows": []}')
    done = run("calibrate", times, "--beside", beside, "-o", profile)
    assert "has no slowdown of weft, only of nothing" in done.output


def test_train__one_page_and_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page, curves = tmp_path / "p.html", tmp_path / "c.svg"
    assert run(*LLAMA, "--html", page, "--curves", curves).exit_code == 0
    text = page.read_text()
    for words in (
        "A step of llama3-8b",
        "exposed communication",
        "bottleneck: ",
        "GPUs, each with",
    ):
        assert words in text
    assert text.count("<svg") == 4
    assert "<script" not in text
    assert "http" not in text
    assert curves.read_text().lstrip().startswith("<?xml")
    for option in ("--curves", "--gantt"):
        done = run(*LLAMA, option, tmp_path / "c.xyz")
        assert f"{option} {tmp_path / 'c.xyz'}: give a name that ends in" in done.output
    done = run(*LLAMA, "--html", tmp_path / "none" / "p.html")
    assert done.exit_code == 2
    assert "cannot write" in done.output


def test_curves__more_bandwidth_never_costs_time() -> None:
    network = of_links("ethernet-100", "nvlink4", 8)
    plan = Plan(data=64, global_batch=64, zero=3)
    model = PRESETS["llama2-7b"]
    gpus, rates, latencies = curves(model, plan, of_gpu(model, plan, gpu("h200")), network)
    assert [point.step_ns for point in rates.points] == sorted(
        (point.step_ns for point in rates.points), reverse=True
    )
    assert [point.x for point in gpus.points][:4] == [1, 2, 4, 8]
    assert gpus.points[0].exposed_ns == 0
    times = [point.step_ns for point in latencies.points]
    assert times == sorted(times)
    (given,) = [point for point in rates.points if point.x == rates.given]
    assert given.step_ns == pytest.approx(train(model, plan, gpu("h200"), network).step_ns)


def test_train__compares_links() -> None:
    done = run(*LLAMA, "--between", "ethernet-100", "--compare", "ethernet-400")
    (slow,), (fast,) = (
        [line.split() for line in done.output.splitlines() if line.startswith(f"ethernet-{rate} ")]
        for rate in (100, 400)
    )
    assert (slow[-1], fast[-1]) == ("%", "%")
    assert float(slow[-2]) > float(fast[-2])
    assert "no link x" in run(*LLAMA, "--compare", "x").output


def test_help__says_what_counts_without_inside() -> None:
    """`plan` takes the link of the GPU's profile, the others none."""
    for name in ("train", "plan", "tolerate", "simulate", "collective", "hlo", "graph"):
        said = " ".join(run(name, "--help").output.split())
        assert ("every GPU is a node of its own" in said) == (name != "plan"), name
        assert ("Default: that of the GPU's profile." in said) == (name == "plan"), name


FILE_OPTIONS = (
    ("train", "gpt2", "--gpus-file", "FILE"),
    ("train", "gpt2", "--gpu", "FILE"),
    ("train", "gpt2", "--links-file", "FILE"),
    ("train", "gpt2", "--network", "FILE"),
    ("train", "gpt2", "--computation", "FILE"),
    ("plan", "gpt2", "--gpus", "8", "--batch", "8", "--gpus-file", "FILE"),
    ("compare", "8 x a100", "--gpus-file", "FILE"),
    ("compare", "8 x FILE"),
    ("collective", "all_reduce", "--ranks", "8", "--network", "FILE"),
    ("hlo", "FILE"),
    ("tune", "FILE", "-o", "tuned.txt"),
    ("calibrate", "FILE", "-o", "mine.toml", "--name", "mine"),
    ("check", "FILE", "--network", "FILE"),
    ("overlap", "FILE"),
)


@pytest.mark.parametrize("words", FILE_OPTIONS, ids=" ".join)
def test_command__pipes_and_devices_are_no_files(words: tuple[str, ...], tmp_path: Path) -> None:
    """A pipe without a writer would be waited for, /dev/zero never ends."""
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    zero = tmp_path / "zero.toml"
    zero.symlink_to("/dev/zero")
    for file, says in ((pipe, "it is a pipe"), (zero, "it is a device")):
        given = [one.replace("FILE", str(file)) for one in words]
        done = CliRunner().invoke(weft, ["estimate", *given])
        assert done.exit_code == 2
        assert says in " ".join(done.output.split())
