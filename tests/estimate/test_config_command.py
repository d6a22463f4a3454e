"""Tests `weft estimate train` and `plan` with configuration files, as users call them."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.estimate.config_files import DEEPSPEED, LLAMA2, SCRIPT, TITAN
from transport.cli import weft
from transport.estimate.models import PRESETS

NODES = ("--inside", "nvlink4")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, ["estimate", *map(str, words)])


def document(*words: str | Path) -> dict[str, Any]:
    done = run(*words, "--json", "-")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA2))
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    (tmp_path / "pretrain.sh").write_text(SCRIPT)
    (tmp_path / "titan.toml").write_text(TITAN)
    return tmp_path


def test_train__a_file_and_the_same_options_have_the_same_step(folder: Path) -> None:
    files = (folder / "config.json", "--config", folder / "ds.json")
    options = ("--zero", "3", "--data", "64", "--batch", "256", "--micro-batch", "2")
    one = document("train", *files, *NODES)
    other = document("train", "llama2-7b", *options, "--bucket", "1GB", *NODES)
    assert one["step_ns"] == other["step_ns"]
    assert one["plan"] == other["plan"]
    first, second = one["files"]
    assert first["form"] == "Hugging Face, llama"
    assert second["options"]["data"] == 64


def test_train__a_script_of_megatron(folder: Path) -> None:
    one = document("train", folder / "pretrain.sh", *NODES)
    options = ("--tensor", "8", "--pipeline", "2", "--data", "8", "--interleave", "4", "--batch")
    more = ("512", "--zero", "1", "--sequence-parallel", "--recompute", "selective", "--framework")
    last = ("megatron", "--gradient-bytes", "4", "--sequence", "4096")
    other = document("train", "llama3-70b", *options, *more, *last, *NODES)
    assert (one["step_ns"], one["plan"]) == (other["step_ns"], other["plan"])


def test_train__torchtitan_sets_the_batch_of_all_replicas(folder: Path) -> None:
    found = document("train", folder / "titan.toml", *NODES)
    assert (found["plan"]["data"], found["plan"]["global_batch"]) == (32, 64)
    more = ("--data", "64", "--shard", "64")
    assert document("train", folder / "titan.toml", *more, *NODES)["plan"]["global_batch"] == 128


def test_train__options_override_files(folder: Path) -> None:
    words = ("--config", folder / "titan.toml", "--data", "8", "--shard", "8", "--tensor", "1")
    done = run("train", "gpt2", *words, *NODES)
    assert done.exit_code == 0, done.output
    said = "options count instead: --tensor 1 (the file has 2), --data 8 (the file has 32)"
    assert said in done.output
    found = document("train", folder / "config.json", "--layers", "2", "--sequence", "128")
    assert (found["model"]["layers"], found["model"]["sequence"]) == (2, 128)


def test_train__options_unset_what_a_file_sets(folder: Path) -> None:
    options = ("--shard", "0", "--no-sequence-parallel", "--no-overlap-tensor")
    plan = document("train", folder / "titan.toml", *NODES, *options)["plan"]
    assert (plan["shard"], plan["sequence"], plan["overlap"]) == (0, False, False)


def test_train__microbatches_of_a_step_give_the_micro_batch(folder: Path) -> None:
    """256 sequences / (8 replicas x 4 microbatches) are 8 of a microbatch."""
    file = folder / "steps.json"
    file.write_text('{"train_batch_size": 256, "gradient_accumulation_steps": 4}')
    words = ("train", "llama2-7b", "--config", file, "--data")
    assert document(*words, "8", *NODES)["plan"]["micro_batch"] == 8
    assert "micro-batch 8: batch 256 / (data 8 x 4 micro" in run(*words, "8", *NODES).output
    assert document(*words, "8", "--batch", "64", *NODES)["plan"]["micro_batch"] == 2
    said = run(*words, "8", "--micro-batch", "2", *NODES).output
    assert "note: batch / (data x micro-batch) counts, not the file's 4 microbatches" in said
    wrong = run(*words, "3", *NODES)
    assert wrong.exit_code == 2
    assert "must be a multiple of data x microbatches of a step, 3 x 4" in wrong.output


def test_train__says_what_it_took_and_what_it_did_not(folder: Path) -> None:
    done = run("train", folder / "config.json", "--config", folder / "ds.json", *NODES)
    for text in (
        "config.json (Hugging Face, llama): layers 32 (num_hidden_layers), hidden 4,096",
        "model: 6.738 billion parameters",
        "config.json: without effect: rope_theta",
        "ds.json (DeepSpeed): zero 3 (zero_optimization.stage)",
        "note: ds.json: 64 data parallel replicas",
    ):
        assert text in done.output


def test_plan__takes_batch_and_precision_and_searches_the_rest(folder: Path) -> None:
    words = ("plan", folder / "config.json", "--config", folder / "ds.json", "--gpus", "8")
    more = ("--layers", "4", "--top", "1", *NODES)
    found = document(*words, *more)
    assert found["global_batch"] == 256
    assert found["model"]["layers"] == 4
    done = run(*words, *more)
    assert "ds.json: not what this command takes: --zero 3" in done.output
    tokens = document(*words, *more, "--batch-tokens", "64k")
    assert tokens["global_batch"] == 8  # 64,000 tokens are 15 sequences; 8 divide well


def test_simulate__takes_files_too(folder: Path) -> None:
    words = ("--layers", "1", "--hidden", "256", "--heads", "4", "--kv-heads", "4", "--ffn", "512")
    sizes = (*words, "--vocabulary", "512", "--sequence", "64", "--data", "2")
    done = run("simulate", folder / "config.json", *sizes)
    assert done.exit_code == 0, done.output
    assert "config.json (Hugging Face, llama)" in done.output


def test_tolerate__takes_models_of_files(folder: Path) -> None:
    words = ("tolerate", folder / "config.json", folder / "titan.toml", "--gpus", "32", *NODES)
    done = run(*words, "--link", "ethernet-400", "--tensor", "1")
    assert done.exit_code == 0, done.output
    assert "config.json (Hugging Face, llama)" in done.output
    assert "options count instead: --tensor 1 (the file has 2)" in done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("none/config.json",), "no file none/config.json"),
        (("ds.json",), "ds.json (DeepSpeed) has no model: give MODEL and --config ds.json"),
        (("gpt2", "--config", "config.json"), "is a model, and MODEL is another one"),
        (("gpt2", "--config", "none.json"), "does not exist"),
        (("bad.json",), "bad.json: is no JSON"),
        (("config.json", "--tensor", "3"), "--tensor: 3: must divide the 32 heads"),
        (("config.json", "--config", "ds.json", "--data", "3"), "--batch: 256: must be a multiple"),
    ],
)
def test_train__bad_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    (folder / "bad.json").write_text("{")
    monkeypatch.chdir(folder)
    done = run("train", *words)
    assert done.exit_code == 2
    assert says in done.output


def test_train__presets_come_before_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "gpt2").mkdir()
    monkeypatch.chdir(folder)
    assert document("train", "gpt2")["model"]["layers"] == PRESETS["gpt2"].layers
