"""Tests `weft estimate fit`: what fits does, and the next larger one does not."""

import json
import shlex
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from transport.cli import weft
from transport.estimate.longest import SEQUENCE_UNIT, largest_micro_batch, longest_sequence
from transport.estimate.memory import memory_of
from transport.estimate.models import PRESETS
from transport.estimate.plan import REMATS, Plan

MODEL = PRESETS["llama3-8b"]
FSDP = Plan(data=8, global_batch=8, zero=3)
PLANS = [
    FSDP,
    replace(FSDP, recompute=True),
    replace(FSDP, selective="operators"),
    replace(FSDP, flash=False),
    replace(FSDP, data=2, tensor=2, context=3, sequence=True),
    replace(FSDP, kept=REMATS["maxtext-full"], offload=True, framework="maxtext"),
    Plan(data=2, tensor=4, pipeline=4, global_batch=8, recompute=True),
]
WORDS = ("llama3-8b", "--gpu", "h100", "--data", "8", "--zero", "3", "--inside", "nvlink4")


def run(*words: str) -> Result:
    return CliRunner().invoke(weft, ["estimate", "fit", *words])


@pytest.mark.parametrize("plan", PLANS)
def test_sequence__fits_and_the_next_one_does_not(plan: Plan) -> None:
    found = longest_sequence(MODEL, plan, 80e9)
    assert found.value
    unit = SEQUENCE_UNIT * (3 if plan.context == 3 else 1)
    assert found.value % unit == 0
    plan.check(replace(MODEL, sequence=found.value))
    totals = [
        memory_of(replace(MODEL, sequence=found.value + more), plan).total for more in (0, unit)
    ]
    assert totals[0] == found.memory.total <= 80e9 < totals[1]


@pytest.mark.parametrize("plan", PLANS)
def test_batch__fits_and_the_next_one_does_not(plan: Plan) -> None:
    model = replace(MODEL, sequence=1_536)
    found = largest_micro_batch(model, plan, 80e9)
    assert found.value
    totals = []
    for count in (found.value, found.value + 1):
        batch = plan.data * count * plan.microbatches
        one = replace(plan, micro_batch=count, global_batch=batch)
        assert one.microbatches == plan.microbatches
        totals.append(memory_of(model, one).total)
    assert totals[0] == found.memory.total <= 80e9 < totals[1]


def test_nothing__has_the_memory_of_the_smallest() -> None:
    found = longest_sequence(MODEL, Plan(), 1e9)
    assert found.value == 0
    assert found.memory == memory_of(replace(MODEL, sequence=SEQUENCE_UNIT), Plan())


def test_command__prints_the_train_command_of_what_fits() -> None:
    done = run(*WORDS)
    assert done.exit_code == 0, done.output
    rows = [line.split()[0] for line in done.output.splitlines()[1:4]]
    assert rows == ["none", "selective-op", "full"]
    found = json.loads(run(*WORDS, "--json", "-").output)
    longest = next(one for one in found["fits"] if one["recompute"] == "full")["sequence"]
    command = found["commands"]["sequence"]
    assert command in done.output
    step = CliRunner().invoke(weft, [*shlex.split(command)[1:], "--json", "-"])
    assert step.exit_code == 0, step.output
    trained = json.loads(step.output)
    assert trained["fits"]
    assert trained["model"]["sequence"] == longest["value"]
    assert trained["memory_bytes"]["total"] == longest["memory_bytes"]["total"]


def test_command__of_a_tpu_tries_maxtexts_policies() -> None:
    words = ("llama3-8b", "--gpu", "tpu-v6e", "--torus", "2x4:open", "--data", "8", "--zero", "3")
    done = run(*words, "--offload", "--longest", "batch")
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.output.splitlines()[1:9]] == [*reversed(REMATS)]
    assert "--framework maxtext" in done.output
    command = next(
        line.split(": ", 1)[1] for line in done.output.splitlines() if "largest micro" in line[:20]
    )
    step = CliRunner().invoke(weft, shlex.split(command)[1:])
    assert step.exit_code == 0, step.output
    assert "does not fit" not in step.output
    assert "only with" not in step.output


def test_command__says_if_nothing_fits() -> None:
    done = run("llama3-70b", "--gpu", "h100", "--recompute", "full", "--longest", "sequence")
    assert done.exit_code == 0, done.output
    assert "does not fit" in done.output
    assert "nothing fits into the 85.52 GB of a GPU" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--recompute", "full", "--offload"), "--offload: needs recompute of maxtext-full"),
        (("--longest", "step"), "'step' is not one of"),
        (("--tensor", "3"), "--tensor: 3: must divide the 32 heads"),
    ],
)
def test_command__mistakes_are_one_line(words: tuple[str, ...], said: str) -> None:
    done = run(*WORDS, *words)
    assert done.exit_code == 2
    assert said in done.output
