"""Tests the files of published training runs: valid, sourced, and without overlap of their sets."""

import csv
from pathlib import Path

import pytest

from bench.estimate_published import RUNS, VTRAIN
from bench.lib.published_runs import COLUMNS, SETS, PublishedError, PublishedRun, read
from transport.estimate.models import PRESETS

FIT, HELD_OUT = (read(file) for file in SETS.values())
CELLS = """
run=one source=paper,table model=gpt2 gpu=h100 gpus=16 gpus_per_node=8 data=4 tensor=2 pipeline=2
context=1 expert=1 zero=1 interleave=1 micro_batch=2 global_batch=16 sequence=1024 dtype=bf16
recompute=none attention=flash sequence_parallel=no inside=nvlink4 between=ethernet-400
unit=step_s value=1.5
"""
ROW = dict.fromkeys(COLUMNS, "") | dict(pair.split("=") for pair in CELLS.split())


def written(path: Path, *changes: dict[str, str]) -> Path:
    """A file with a row for each of `changes`, which replace cells of ROW."""
    file = path / "runs.csv"
    with file.open("w", newline="") as out:
        out.write("# a comment\n")
        table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(ROW | change for change in changes)
    return file


def only(path: Path, **change: str) -> PublishedRun:
    (found,) = read(written(path, change))
    return found


def test_sets__are_large_and_varied() -> None:
    count: dict[str, int] = {}
    for one in HELD_OUT:
        count[one.generation] = count.get(one.generation, 0) + 1
    assert len(FIT) + len(HELD_OUT) >= 60
    assert len(HELD_OUT) >= 40
    assert count["Hopper"] + count["Blackwell"] >= 15
    assert count["TPU"] >= 4
    assert {one.generation for one in FIT} >= {"A100", "Hopper", "Blackwell", "TPU"}


def test_sets__every_run_has_a_source_that_is_in_one_set_only() -> None:
    assert all(one.source for one in (*FIT, *HELD_OUT))
    assert {one.source for one in FIT} & {one.source for one in HELD_OUT} == set()


def test_sets__share_no_run_and_no_configuration() -> None:
    assert {one.run for one in FIT} & {one.run for one in HELD_OUT} == set()
    fitted = {one.configuration: one.run for one in FIT}
    assert [one.run for one in HELD_OUT if one.configuration in fitted] == []


def test_sets__runs_known_to_the_estimator_are_not_held_out() -> None:
    known = {one.run: one for one in FIT}
    for run in RUNS:
        one = known[run.run]
        assert (one.gpus, one.tensor, one.pipeline) == (run.gpus, run.tensor, run.pipeline)
        assert (one.global_batch, one.gpu) == (run.batch, run.gpu)

    def degrees(one: PublishedRun) -> tuple[int, ...]:
        batches = one.global_batch, one.micro_batch
        return (one.model.layers, one.model.hidden, *batches, one.data, one.tensor, one.pipeline)

    held_out = {degrees(one) for one in HELD_OUT if one.generation == "A100"}
    lines = VTRAIN.read_text().splitlines()
    for row in csv.DictReader(line for line in lines if line[0] != "#"):
        model = PRESETS[row["model"]]
        names = ("batch", "micro_batch", "data", "tensor", "pipeline")
        assert (model.layers, model.hidden, *(int(row[name]) for name in names)) not in held_out


def test_read__a_preset_and_sizes(tmp_path: Path) -> None:
    one = only(tmp_path, sequence="512")
    assert (one.model.layers, one.model.sequence, one.zero) == (12, 512, 1)
    sizes = {"layers": "2", "hidden": "64", "heads": "4", "ffn": "256", "vocabulary": "1000"}
    one = only(tmp_path, model="small", gated="yes", kv_heads="2", zero="hybrid", **sizes)
    assert (one.model.kv_heads, one.model.gated, one.model.experts) == (2, True, 1)
    assert (one.zero, one.publisher, one.generation) == (None, "paper", "Hopper")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": "32"}, "line 3: gpus: 32: data x tensor x pipeline x context are 16"),
        ({"global_batch": "12"}, "global_batch: must be a multiple of data x micro_batch"),
        ({"tensor": "-2"}, "tensor: '-2': must be a whole number"),
        ({"tensor": "0"}, "tensor: 0: must be 1 to"),
        ({"interleave": "2", "pipeline": "1", "data": "8"}, "interleave: must be 1 without"),
        ({"model": "gpt5"}, "model: gpt5: is no preset: give layers"),
        ({"model": "small", "layers": "2"}, "hidden: '': must be a whole number"),
        ({"gpu": "h1000"}, "gpu: h1000: must be one of"),
        ({"zero": "4"}, "zero: '4': must be 0 or 1"),
        ({"unit": "mfu"}, "value: 1.5: must be above 0 and at most 1"),
        ({"value": "nan"}, "value: nan: must be above 0"),
        ({"value": "fast"}, "value: 'fast': must be a number"),
        ({"source": ""}, "source: '': must be a text"),
    ],
)
def test_read__says_what_is_wrong(tmp_path: Path, change: dict[str, str], said: str) -> None:
    with pytest.raises(PublishedError) as error:
        read(written(tmp_path, change))
    assert said in str(error.value)


def test_read__refuses_other_files(tmp_path: Path) -> None:
    with pytest.raises(PublishedError, match="there are two of this name"):
        read(written(tmp_path, {}, {}))
    short = written(tmp_path, {})
    short.write_text(short.read_text() + "one,two\n")
    with pytest.raises(PublishedError, match="line 4: it has 2 columns"):
        read(short)
    short.write_text(f'{",".join(COLUMNS)}\n"one\n')
    with pytest.raises(PublishedError, match="line 2: unexpected end of data"):
        read(short)
    short.write_text("run,source\n")
    with pytest.raises(PublishedError, match="the columns must be run,source"):
        read(short)
    with pytest.raises(PublishedError, match="cannot read"):
        read(tmp_path / "nosuch.csv")


def test_step__units_are_those_of_the_same_step(tmp_path: Path) -> None:
    flops = 989.4e12
    model, tokens = PRESETS["gpt2"], 16 * 1_024
    speed = model.step_flops(tokens) / 1.5 / 16
    again = model.step_flops(tokens, recomputes=True) / 1.5 / 16
    for unit, value, recompute in (
        ("step_s", 1.5, "none"),
        ("tokens_per_s", tokens / 1.5 / 16, "none"),
        ("tflops", speed / 1e12, "full"),
        ("hardware_tflops", again / 1e12, "full"),
        ("mfu", speed / flops, "none"),
    ):
        one = only(tmp_path, unit=unit, value=str(value), recompute=recompute)
        assert one.step_s(flops) == pytest.approx(1.5)
