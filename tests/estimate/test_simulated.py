"""Tests that steps of every kind of parallelism take as long in the simulator as estimated."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from click.testing import CliRunner, Result

from transport.cli import weft
from transport.errors import InvalidArgumentError
from transport.estimate.computation import of_gpu
from transport.estimate.gpus import gpu
from transport.estimate.models import PRESETS, Model
from transport.estimate.networks import of_links
from transport.estimate.placed import Placed
from transport.estimate.plan import Group, Plan
from transport.estimate.sharing import NOTHING, Sharing
from transport.estimate.simulated import Simulated, scenario_of
from transport.estimate.step import Step
from transport.sim.scenario import from_tables

LLAMA = replace(PRESETS["llama2-7b"], layers=4, sequence=1_024)
EXPERTS = replace(PRESETS["mixtral-8x7b"], layers=2, sequence=1_024)


def run(*words: str) -> Result:
    return CliRunner().invoke(weft, ["estimate", "simulate", *words])


def scenario(model: Model, plan: Plan, sharing: Sharing = NOTHING) -> Simulated:
    """On nodes of four GPUs."""
    network = of_links("ethernet-100", "nvlink4", 4, sharing=sharing)
    plan.check(model)
    step = Step(model, plan, of_gpu(model, plan, gpu("h100")), network)
    return scenario_of(step, step.build(), 1e9, 32_768)


def sent_bytes(made: Simulated) -> Counter[tuple[int, int]]:
    """(sender, receiver) -> bytes."""
    found: Counter[tuple[int, int]] = Counter()
    for one in from_tables(made.tables, file="test").work.transfers:
        found[int(one["from"]), int(one["to"])] += int(one["bytes"])
    return found


SMALL = ("--sequence", "1024", "--between", "ethernet-100", "--inside", "nvlink4")
FOUR = (*SMALL, "--gpus-per-node", "4")


@pytest.mark.parametrize(
    ("words", "between", "inside"),
    [
        ("gpt2-medium --layers 4 --data 16", "gradients", ""),
        ("gpt2-medium --layers 4 --data 8", "gradients", ""),
        ("gpt2-medium --layers 4 --data 12", "gradients", ""),
        ("gpt2-medium --layers 4 --data 16 --zero 1", "gradients parameters", ""),
        ("gpt2-medium --layers 4 --data 16 --zero 3", "embeddings gradients parameters", ""),
        (
            "gpt2-medium --layers 4 --data 16 --zero 3 --shard 4",
            "gradients of replicas",
            "embeddings gradients parameters",
        ),
        ("llama2-7b --layers 2 --tensor 4 --data 4", "gradients", "tensor"),
        ("llama2-7b --layers 2 --tensor 8 --data 2", "gradients tensor", ""),
        ("llama2-7b --layers 4 --tensor 4 --pipeline 4", "pipeline", "tensor"),
        ("llama2-7b --layers 4 --tensor 2 --pipeline 8 --layers 8", "pipeline", "tensor"),
        (
            "llama2-7b --layers 4 --tensor 4 --pipeline 2 --data 2 --batch 16",
            "gradients pipeline",
            "tensor",
        ),
        (
            "llama2-7b --layers 4 --tensor 4 --pipeline 2 --data 2 --batch 16 --interleave 2",
            "gradients pipeline",
            "tensor",
        ),
        (
            "llama2-7b --layers 4 --tensor 4 --pipeline 4 --schedule zero-bubble --batch 8",
            "pipeline",
            "tensor",
        ),
        ("mixtral-8x7b --layers 2 --expert 4 --data 16", "experts' gradients gradients", "expert"),
        (
            "mixtral-8x7b --layers 2 --expert 8 --data 16",
            "expert experts' gradients gradients",
            "",
        ),
        ("llama2-7b --layers 2 --context 16", "context gradients", ""),
        (
            "llama2-7b --layers 2 --tensor 4 --context 2 --data 2 --zero 3",
            "context embeddings gradients parameters",
            "tensor",
        ),
    ],
)
def test_simulate__agrees_with_the_estimate(words: str, between: str, inside: str) -> None:
    """Times are virtual: those of one seed are the same on every machine."""
    done = run(*words.split(), *FOUR, "--json", "-")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["ratio"] == pytest.approx(1.0, abs=0.1)
    assert sorted(" ".join(found["between_nodes"]).split()) == sorted(between.split())
    assert sorted(" ".join(found["inside_nodes"]).split()) == sorted(inside.split())


def test_simulate__without_its_policies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a checkout that was not built: a fake, since this one was."""

    def unbuilt(*_: object, **__: object) -> None:
        raise InvalidArgumentError("no window policy 'swift': choose one of fixed")

    monkeypatch.setattr(import_module("transport.sim.run"), "Simulation", unbuilt)
    done = run("gpt2", "--data", "16", "--inside", "nvlink4", "--layers", "2")
    assert done.exit_code == 2
    assert "no window policy 'swift'" in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_simulate__says_what_is_simulated() -> None:
    done = run("llama2-7b", "--layers", "2", "--tensor", "4", "--data", "4", *FOUR)
    assert done.exit_code == 0, done.output
    assert "4 hosts, one for each node of a pipeline stage" in done.output
    assert (
        "simulated: gradients; in estimated time: computation, latency of steps, tensor (inside "
        "nodes)" in done.output
    )


def test_simulate__advises_no_algorithm_that_queues_make_slow() -> None:
    """Gathers by PAT that follow each other on several leaves; on one leaf they are as estimated.

    Messages of hosts that are ahead take the links of those behind.
    """
    words = ("gpt2", "--layers", "4", "--data", "32", "--zero", "3", "--between", "ethernet-100")
    leaves, leaf = (
        run(*words, "--oversubscription", "1", "--nodes-per-leaf", count).output
        for count in ("16", "32")
    )
    assert "recommended" not in leaves
    assert "NCCL_ALGO='allgather:pat;reducescatter:pat'" in leaf


def test_scenario__stages_send_to_the_same_node_of_the_next_stage() -> None:
    """Two stages of two nodes; each NIC sends one GPU's activations of four microbatches."""
    made = scenario(LLAMA, Plan(tensor=4, data=2, pipeline=2, global_batch=8))
    each = 4 * LLAMA.sequence * LLAMA.hidden * 2
    sent = sent_bytes(made)
    assert {pair: sent[pair] for pair in ((0, 2), (1, 3), (2, 0), (3, 1))} == dict.fromkeys(
        ((0, 2), (1, 3), (2, 0), (3, 1)), each
    )
    # A ring of two GPUs sends its buffer once; nothing goes between nodes of other places.
    assert set(sent) == {(0, 2), (1, 3), (2, 0), (3, 1), (0, 1), (1, 0), (2, 3), (3, 2)}


def test_scenario__an_interleaved_pipeline_also_sends_from_the_last_stage_to_the_first() -> None:
    plan = Plan(tensor=4, pipeline=2, interleave=2, global_batch=2)
    sent = sent_bytes(scenario(LLAMA, plan))
    each = 2 * LLAMA.sequence * LLAMA.hidden * 2
    # Chunks 0 to 3 are on stages 0, 1, 0, 1: three sends forward, and three backward.
    assert sent == {(0, 1): 3 * each, (1, 0): 3 * each}


def test_scenario__experts_exchange_within_their_groups() -> None:
    """Eight experts on two nodes of four; two copies of them, two nodes apart, sum gradients."""
    sent = sent_bytes(scenario(EXPERTS, Plan(expert=8, data=16, global_batch=16)))
    tokens_bytes = EXPERTS.sequence * EXPERTS.hidden * 2 * EXPERTS.active
    exchanged = 2 * 4 * tokens_bytes / 2  # in 2 layers four times, half to the other node
    for one, other in ((0, 1), (1, 0), (2, 3), (3, 2)):
        assert sent[one, other] >= exchanged
    # Gradients of the experts of 2 layers, on 8 GPUs; the trees of other gradients come on top.
    assert sent[0, 2] >= 2 * EXPERTS.experts * EXPERTS.expert_parameters / 8 * 2


def test_scenario__has_as_many_nodes_on_a_leaf_as_the_network() -> None:
    made = scenario(LLAMA, Plan(data=16, global_batch=16), Sharing(nodes_per_leaf=3))
    fabric = made.tables["network"]
    assert (made.hosts, fabric["hosts"], fabric["hosts_per_leaf"]) == (4, 6, 3)


@pytest.mark.parametrize(
    ("group", "keys"),
    [
        (Group(4, 1), (1, {})),
        (Group(16, 1), (4, {})),
        (Group(8, 1), (2, {"group_ranks": 2})),
        (Group(4, 2), (2, {"group_ranks": 2})),
        (Group(2, 8), (2, {"group_ranks": 2, "across": True})),
        (Group(4, 4), (4, {})),
    ],
)
def test_placed__groups_of_four_nodes(group: Group, keys: tuple[int, dict[str, Any]]) -> None:
    assert Placed(Plan(data=16), 4).spread("test", group) == keys


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        ("gpt2-xl", "--data 8 --inside nvlink4", "are on one node of 8: nothing to simulate"),
        ("gpt2-xl", "--data 64 --segment 1kB", "M packets: use fewer"),
        ("gpt2-xl", "--data 4 --segment big", "--segment: "),
        ("gpt2-xl", "--data 4 --segment 1MB", "hosts.segment_bytes: 1000000: expected"),
        (
            "llama2-7b",
            "--tensor 8 --pipeline 2 --data 2 --batch 8 --schedule dualpipe --inside nvlink4",
            "schedule: dualpipe cannot be simulated",
        ),
        (
            "llama2-7b",
            "--tensor 2 --data 6 --pipeline 2 --inside nvlink4",
            "a pipeline stage has 12 GPUs: to be simulated they must fill nodes of 8, or divide",
        ),
        ("llama2-7b", "--tensor 4 --data 2 --overlap-tensor", "leave out --overlap-tensor"),
        ("llama2-7b", "--context 4 --overlap-context", "leave out --overlap-tensor"),
        (
            "llama2-7b",
            "--data 24 --zero 3 --shard 12 --inside nvlink4",
            "groups that do not fill their nodes cannot be simulated",
        ),
        ("gpt2-xl", "--data 4096 --zero 3", "messages would be simulated: use fewer --layers"),
    ],
)
def test_simulate__mistakes_are_one_line(model: str, words: str, said: str) -> None:
    done = run(model, *words.split())
    assert done.exit_code == 2
    assert said in done.output.splitlines()[-1]
