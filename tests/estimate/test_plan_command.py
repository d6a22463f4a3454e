"""Tests `weft estimate plan` as users call it."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.estimate.test_networks import GOOD
from transport.cli import weft
from transport.estimate.failures import Failures
from transport.estimate.models import PRESETS

FILES = {
    "config.json": """{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "vocab_size": 32000,
        "max_position_embeddings": 4096}""",
    "deepspeed.json": """{"train_batch_size": 64, "bf16": {"enabled": true},
        "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}""",
    "titan.toml": """[training]
global_batch_size = 32
[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
[compile]
enable = true
""",
    "hybrid.toml": """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
enable_async_tensor_parallel = true
pipeline_parallel_degree = 2
[activation_checkpoint]
mode = "full"
""",
    "pretrain.sh": """torchrun --nproc_per_node 4 --nnodes 4 pretrain_gpt.py --num-layers 16
        --hidden-size 2048 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000
        --tensor-model-parallel-size 4 --sequence-parallel --tp-comm-overlap --bf16
        --context-parallel-size 2 --micro-batch-size 2 --global-batch-size 32
""",
    "network.toml": GOOD,
}


def run(*words: str) -> Result:
    return CliRunner().invoke(weft, ["estimate", "plan", *words])


def test_command__a_run_by_hand() -> None:
    words = ("llama3-8b", "--gpus", "8", "--gpu", "h100", "--batch", "16", "--top", "1")
    more = ("--tokens", "1T", "--price", "2", "--json", "-")
    found = json.loads(run(*words, *more).stdout)
    (one,) = found["plans"]
    steps = math.ceil(1e12 / (16 * PRESETS["llama3-8b"].sequence))
    days = steps * one["step_ns"] / 1e9 / 86_400
    assert one["days"] == pytest.approx(days)
    assert one["gpu_hours"] == pytest.approx(days * 24 * 8)
    assert one["cost"] == pytest.approx(days * 24 * 8 * 2)
    assert one["energy_mwh"] == pytest.approx(days * 24 * 8 * 700 / 1e6)
    assert one["goodput"] is None
    failing = ("--mtbf-hours", "50000", "--checkpoint-s", "60")
    (other,) = json.loads(run(*words, *failing, *more).stdout)["plans"]
    failures = Failures(50_000 * 3600 / 8, 60.0, 300.0)
    assert other["goodput"] == pytest.approx(failures.goodput(failures.daly_s))
    assert other["days"] == pytest.approx(days / other["goodput"])


def test_command__prints_plans_and_what_a_run_takes() -> None:
    words = ("llama3-8b", "--gpus", "8", "--gpu", "h100", "--batch-tokens", "1M", "--top", "2")
    done = run(*words, "--tokens", "15e12", "--mtbf-hours", "1000", "--checkpoint-s", "30")
    assert done.exit_code == 0, done.output
    assert "cost is in the currency of --price; in brackets: the range" in done.output
    days = re.search(
        r"^1 +([0-9.,]+) \(([0-9.,]+) to ([0-9.,]+)\) +[0-9,]+ \([0-9,]+ to", done.output, re.M
    )
    assert days is not None
    best, low, high = (float(one.replace(",", "")) for one in days.groups())
    assert low < best < high
    for text in (
        *("MFU", "GPU-hours", "Daly 2006", "Young 1974", "linked by nvlink4", "goodput"),
        "120 sequences a step, 983,040 tokens",
        "no plan that was left out is faster",
    ):
        assert text in done.output
    assert "? " in done.output  # no price was given


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "Missing option '--gpus'"),
        (("--gpus", "8"), "either --batch or --batch-tokens"),
        (("--gpus", "8", "--batch", "8", "--batch-tokens", "1M"), "either --batch or"),
        (("--gpus", "8", "--batch-tokens", "5"), "less than a sequence"),
        (("--gpus", "8", "--batch", "8", "--tokens", "many"), "expected a number such as 2K"),
        (("--gpus", "8", "--batch", "8", "--tokens", "9" * 400), "expected a number such as 2K"),
        (("--gpus", "8", "--batch", "8", "--mtbf-hours", "9"), "need each other"),
        (("--gpus", "8", "--batch", "8", "--price", "2"), "--price needs --tokens"),
        (("--gpus", "8", "--batch", "8", "--price", "nan"), "not in the range"),
        (("--gpus", "101", "--batch", "8"), "--gpus: 101: no plan divides them"),
        (("--gpus", "0", "--batch", "8"), "not in the range"),
    ],
)
def test_command__errors(words: tuple[str, ...], says: str) -> None:
    done = run("llama3-8b", *words)
    assert done.exit_code == 2
    assert says in done.output


def test_command__nothing_fits() -> None:
    done = run("llama3-70b", "--gpus", "8", "--gpu", "h100", "--batch", "8")
    assert done.exit_code == 1
    for text in (
        "fits into the 85.52 GB of h100",
        "Of 10 ways to divide the GPUs: 10: too much memory: the smallest needs",
        "With --gpus 16 a plan fits",
        "weft estimate train llama3-70b --gpu h100",
        "a GPU with more memory (gb200",
    ):
        assert text in done.output


@pytest.mark.parametrize(
    ("gpus", "tokens", "says"),
    [
        (64, "4M", "512 sequences a step, 4,194,304 tokens instead of 4,000,000 (+4.9 %)"),
        (1024, "4M", "512 sequences a step, 4,194,304 tokens instead of 4,000,000 (+4.9 %)"),
        (64, "3.7M", "448 sequences a step, 3,670,016 tokens instead of 3,700,000 (-0.81 %)"),
        (64, "4194304", "512 sequences a step, 4,194,304 tokens\n"),
    ],
)
def test_command__tokens_of_a_step_are_the_nearest_that_divide(
    gpus: int, tokens: str, says: str
) -> None:
    words = ("llama3-8b", "--gpu", "h200", "--top", "1", "--limit", "1")
    assert says in run(*words, "--gpus", str(gpus), "--batch-tokens", tokens).output


def test_command__searches_only_what_is_asked_for() -> None:
    words = ("llama3-8b", "--gpus", "64", "--gpu", "h100", "--batch", "64")
    asked = ("--tensor", "2", "--pipeline", "1", "--pipeline", "2", "--zero", "1", "--zero", "3")
    plans = [one["plan"] for one in json.loads(run(*words, *asked, "--json", "-").stdout)["plans"]]
    assert {one["tensor"] for one in plans} == {2}
    assert {one["pipeline"] for one in plans} <= {1, 2}
    assert {one["zero"] for one in plans} <= {1, 3}
    none = run(*words, "--tensor", "3")
    assert none.exit_code == 2
    assert "no tensor x pipeline x context divides them" in none.output
    data = run(*words, "--data", "8")
    assert data.exit_code == 2
    assert "--data: follows from --gpus / (tensor x pipeline x context)" in data.output


def test_command__plans_of_megatron_are_what_it_has(tmp_path: Path) -> None:
    script = tmp_path / "pretrain.sh"
    script.write_text(FILES["pretrain.sh"])
    words = ("--gpus", "16", "--gpu", "a100-40", "--top", "50", "--limit", "60")
    done = run(str(script), *words)
    assert "framework megatron: only what it has is tried: schedule 1f1b; recompute" in done.output
    assert "zero-bubble" not in done.output
    assert "selective-op" not in done.output
    found = json.loads(run(str(script), *words, "--json", "-").stdout)["plans"]
    assert {(one["plan"]["schedule"], one["plan"]["selective"]) for one in found} <= {
        ("1f1b", ""),
        ("1f1b", "attention"),
    }
    assert all(one["plan"]["pipeline"] == 1 for one in found if one["plan"]["zero"] == 3)
    other = run("llama3-8b", *words, "--batch", "64", "--framework", "megatron", "--top", "1")
    assert "schedule 1f1b; recompute none, selective, full" in other.output
    asked = run(str(script), *words, "--schedule", "zero-bubble")
    assert "schedule zero-bubble; recompute" in asked.output


def test_command__plans_that_may_not_fit_are_left_out_or_marked() -> None:
    words = ("llama3-70b", "--gpus", "16", "--gpu", "h100", "--batch", "16")
    safe = run(*words)
    assert "may not fit" not in safe.output
    assert "plans leave 9 % of their memory's estimate unused" in safe.output
    found = json.loads(run(*words, "--json", "-").stdout)
    assert max(one["memory_high_bytes"] for one in found["plans"]) <= 85.52e9
    tight = run(*words, "--memory-headroom", "0%")
    assert "99 %, may not fit" in tight.output
    none = run(*words, "--memory-headroom", "20")
    assert none.exit_code == 1
    assert "20 % of headroom" in none.output
    assert "would fit without headroom: --memory-headroom 0" in none.output
    assert run(*words, "--memory-headroom", "-1").exit_code == 2


def test_command__what_divides_nothing_has_its_causes() -> None:
    done = run("llama3-8b", "--gpus", "101", "--gpu", "h100", "--batch", "101")
    assert done.exit_code == 2
    for text in (
        "1: tensor does not divide the 32 heads",
        "1: more pipeline stages than the 32 layers",
        "1: 101 GPUs do not fill nodes of 8",
        "With --gpus 104 a plan fits",
    ):
        assert text in done.output


@pytest.mark.parametrize(
    "words",
    [
        ("llama3-8b", "--gpu", "h100", "--batch", "16", "--gpus", "16"),
        (
            *("mixtral-8x7b", "--batch", "32", "--gpus", "32", "--context", "2", "--top", "4"),
            *("--inside", "nvlink3", "--gpus-per-node", "4", "--framework", "megatron"),
            *("--expert", "8", "--gpu", "mi300x"),
        ),
        (
            *("custom", "--layers", "8", "--hidden", "1024", "--heads", "16", "--ffn", "4096"),
            *("--vocabulary", "1000", "--sequence", "512", "--batch", "8", "--gpus", "4"),
            *("--no-flash", "--overlap-tensor", "--efficiency", "0.5", "--gradient-bytes", "4"),
            *("--schedule", "dualpipe", "--schedule", "1f1b", "--between", "ethernet-100"),
        ),
        ("llama3-8b", "--gpu", "h100", "--batch", "16", "--gpus", "16", "--dtype", "fp8"),
        ("config.json", "--batch", "64", "--gpus", "16", "--gpu", "h100"),
        ("config.json", "--config", "deepspeed.json", "--gpus", "16", "--dtype", "fp8"),
        ("llama3-8b", "--config", "titan.toml", "--gpus", "16", "--gradient-bytes", "2"),
        ("hybrid.toml", "--batch", "64", "--gpus", "32"),
        ("hybrid.toml", "--batch", "64", "--gpus", "16", "--network", "network.toml"),
        ("pretrain.sh", "--gpus", "16"),
        ("pretrain.sh", "--gpus", "16", "--gpu", "tpu-v5p"),
    ],
)
def test_command__the_command_of_each_plan_estimates_the_same_step(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    found = json.loads(run(*words, "--json", "-").stdout)
    assert len(found["plans"]) > 3
    for one in found["plans"]:
        command = [*shlex.split(one["command"]), "--json", "-"]
        assert command[:3] == ["weft", "estimate", "train"]
        step = json.loads(CliRunner().invoke(weft, command[1:]).stdout)
        assert step["step_ns"] == one["step_ns"]
        assert step["memory_bytes"]["total"] == one["memory_bytes"]
        assert step["plan"] == one["plan"]
        assert step["range"] == one["range"]
        assert (step["mfu"], step["hfu"]) == pytest.approx((one["mfu"], one["hfu"]))
    printed = run(*words, "--commands").output
    assert printed.count("weft estimate train") == len(found["plans"])
    assert run(*words).output.count(f"plan 1: {found['plans'][0]['command']}\n") == 1


def test_command__nothing_fits_and_json_says_why(tmp_path: Path) -> None:
    file = tmp_path / "plans.json"
    words = ("llama3-70b", "--gpus", "8", "--gpu", "h100", "--batch", "8")
    done = run(*words, "--json", str(file))
    assert done.exit_code == 1
    assert "fits into the 85.52 GB" in done.output
    found = json.loads(file.read_text())
    assert (found["fit"], found["plans"], found["refused"]) == (0, [], {"too much memory": 10})
    assert found["smallest_memory_bytes"] > 85.52e9


def test_command__failures_that_no_run_survives_are_not_judged() -> None:
    words = ("--gpus", "8", "--gpu", "h100", "--batch", "8", "--top", "1", "--tokens", "1T")
    done = run("llama3-8b", *words, "--mtbf-hours", "0.000001", "--checkpoint-s", "1e9")
    assert done.exit_code == 0, done.output
    assert "checkpoints take too long" in done.output
    assert "?" in done.output


def test_command__says_what_an_interleaved_schedule_is() -> None:
    """Legends are of what the table has."""
    words = ("gpt3-175b", "--gpus", "64", "--gpu", "a100-80", "--batch", "64", "--top", "6")
    done = run(*words, "--between", "infiniband-200")
    assert done.exit_code == 0, done.output
    found = re.search(r"1f1b x (\d)  ", done.output)
    assert found
    assert f"1f1b x {found[1]}: interleaved, each stage has {found[1]} parts" in done.output
    assert ("zero-bubble: ZB-H1" in done.output) == ("zero-bubble  " in done.output)
