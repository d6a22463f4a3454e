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
# Few microbatches, so that the schedule takes little time.
SMALL = SCRIPT.replace("-size 512", "-size 32").replace("--num-layers-per-virtual", "--other")


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


def test_plan__takes_a_folder_of_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "gpt2"):
        Path(name).mkdir()
        Path(name, "config.json").write_text(json.dumps(LLAMA2 | {"num_hidden_layers": 4}))
    words = ("--gpus", "8", "--batch", "16", "--gpu", "h100-sxm")
    assert document("plan", "mine", *words)["model"]["layers"] == 4
    assert document("plan", "mine", *words)["gpu"] == "h100"
    assert document("plan", "gpt2", *words)["model"]["layers"] == 12  # a preset has the name


def test_train__nodes_of_a_script_have_the_link_of_their_gpus(folder: Path) -> None:
    """A script says how many GPUs a node has; options count first."""
    (folder / "pretrain.sh").write_text(SMALL)
    words = ("train", folder / "pretrain.sh", "--gpu", "h100")
    done = run(*words)
    assert "pretrain.sh: nodes have 8 GPUs, linked by nvlink4: --inside changes it" in done.output
    assert "framework: megatron" in done.output
    assert document(*words)["step_ns"] == document(*words, *NODES)["step_ns"]
    other = run(*words, "--inside", "pcie5", "--oversubscription", "2", "--nics-per-node", "4")
    assert "linked by" not in other.output
    assert (
        "network: pcie5 and ethernet-400; NICs of a node: 4; oversubscription 2, 16" in other.output
    )
    assert "every GPU alone in its node" in run("train", "llama2-7b", "--data", "8").output


def test_train__replicas_are_what_other_degrees_leave_of_the_gpus(folder: Path) -> None:
    """128 GPUs: 8 x 2 share a replica, or 4 x 2 with --tensor 4."""
    (folder / "pretrain.sh").write_text(SMALL)
    words = ("train", folder / "pretrain.sh", *NODES)
    said = "data 8: 128 GPUs of pretrain.sh / (tensor 8 x pipeline 2 x context 1)"
    assert said in run(*words).output
    assert document(*words, "--tensor", "4")["plan"]["data"] == 16
    plan = document(*words, "--tensor", "4", "--data", "4")["plan"]
    assert (plan["data"], plan["tensor"]) == (4, 4)
    (folder / "pretrain.sh").write_text(SMALL.replace("PP=2", "PP=5"))
    wrong = run(*words)
    assert wrong.exit_code == 2
    assert "128 GPUs are no multiple of tensor 8 x pipeline 5 x context 1, 40" in wrong.output
    assert document(*words, "--pipeline", "4")["plan"]["data"] == 4
    assert document(*words, "--data", "4")["plan"]["data"] == 4


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


def test_train__options_that_say_the_same_as_a_file_are_not_named(folder: Path) -> None:
    files = (folder / "config.json", "--config", folder / "ds.json")
    same = ("--zero", "3", "--bucket", "1 GB", "--micro-batch", "2")
    assert "options count" not in run("train", *files, *NODES, *same).output
    said = run("train", *files, *NODES, *same, "--data", "32").output
    assert "options count instead: --data 32 (the file has 64)\n" in said


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


@pytest.mark.parametrize("name", ["titan.toml", "pretrain.sh"])
def test_train__fp8_of_a_file(folder: Path, name: str) -> None:
    """H100s have a rate in FP8, A100s have none; --dtype counts before the file."""
    file = folder / name
    text = SMALL if name == "pretrain.sh" else TITAN
    text = text.replace('flavor = "8B"', 'flavor = "8B"\nconverters = ["float8"]')
    file.write_text(text.replace("--bf16", "--bf16 --fp8-format hybrid"))
    words = ("train", file, *NODES, "--gpu")
    assert document(*words, "h100")["plan"]["dtype"] == "fp8"
    assert "16 bits" not in run(*words, "h100").output
    assert document(*words, "h100", "--dtype", "bf16")["plan"]["dtype"] == "bf16"
    assert document(*words, "a100-80")["plan"]["dtype"] == "bf16"
    said = run(*words, "a100-80", "--dtype", "bf16").output
    assert "--dtype bf16 (the file has fp8)" in said
    assert "16 bits" not in said
    assert "dense.fp8" in run(*words, "a100-80", "--dtype", "fp8").output
    said = run(*words, "a100-80").output
    assert f"note: {name}: FP8 is estimated as 16 bits: the profile of " in said
    assert run(*words, "nothing").exit_code == 2
    few = ("--gpus", "64", "--layers", "8", "--gpu")
    more = run("tolerate", file, *NODES, *few, "a100-80", "--link", "ethernet-400").output
    assert f"note: {name}: FP8 is estimated as 16 bits" in more
    found = document("plan", file, *few, "h100", "--batch", "64", "--limit", "10")
    assert found["plans"][0]["plan"]["dtype"] == "fp8"


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
    assert tokens["global_batch"] == 16  # 64,000 tokens are 15.6 sequences


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
