"""Tests steps over several sites: terms by hand, links with a latency, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from transport.cli import weft
from transport.estimate.gpus import gpu
from transport.estimate.models import PRESETS
from transport.estimate.networks import Network, NetworkError, delayed, link, of_links, with_file
from transport.estimate.plan import Group, Plan, PlanError
from transport.estimate.sites import joined
from transport.estimate.step import Step
from transport.estimate.tolerate import tolerance
from transport.estimate.training import rows_of, train

MODEL = PRESETS["llama3-8b"]
LATENCY_NS = 5e6
HSDP = Plan(data=16, zero=3, shard=8, global_batch=32, gradient_bytes=4)


def network() -> Network:
    return of_links("infiniband-400", "nvlink4")


def two_sites(plan: Plan, name: str = "ethernet-100") -> Network:
    return joined(network(), plan, 2, delayed(link(name), LATENCY_NS))


def step_of(plan: Plan, on: Network) -> Step:
    from transport.estimate.computation import of_gpu

    return Step(MODEL, plan, of_gpu(MODEL, plan, gpu("h100")), on)


def run(*words: object) -> Result:
    return CliRunner().invoke(weft, ["estimate", *map(str, words)])


def test_sites__replicas_share_the_link_of_their_site() -> None:
    """Two replicas send an AllReduce's bytes once each, in two messages; 8 GPUs share a link."""
    step = step_of(HSDP, two_sites(HSDP))
    sent = step.message("sum", "all_reduce", HSDP.group("replicas"), 10e6)
    assert sent is not None
    rate = link("ethernet-100").bytes_per_s / 8
    assert sent.bytes_ns == pytest.approx(10e6 / rate * 1e9)
    base_ns = link("ethernet-100").protocols[-1].base_ns
    assert sent.latency_ns == pytest.approx(2 * LATENCY_NS + base_ns)
    assert sent.limited_by == "latency" if sent.latency_ns > sent.bytes_ns else "sites"


def test_sites__a_gather_of_all_first_exchanges_parts_between_sites() -> None:
    """Each of 8 GPUs of a site gets the other site's 1/16 of 160 MB over 1/8 of the link."""
    plan = replace(HSDP, shard=0)
    on = two_sites(plan)
    both = step_of(plan, on).message("all", "all_gather", Group(16, 1), 160e6)
    near = step_of(plan, network()).message("all", "all_gather", Group(8, 1), 160e6)
    assert both is not None
    assert near is not None
    far_ns = 10e6 / (link("ethernet-100").bytes_per_s / 8) * 1e9
    assert both.bytes_ns == pytest.approx(near.bytes_ns + far_ns)
    assert both.limited_by == "sites"


def test_sites__groups_inside_a_site_do_not_use_the_link() -> None:
    inside = [step_of(HSDP, one) for one in (network(), two_sites(HSDP))]
    sent = [one.message("gather", "all_gather", HSDP.group("shard"), 1e8) for one in inside]
    assert sent[0] == sent[1]


def test_sites__pipeline_stages_next_to_each_other_send_between_them() -> None:
    plan = Plan(pipeline=4, tensor=8, global_batch=8)
    step = step_of(plan, two_sites(plan))
    step.build()
    ns = {task.name: task.ns for task in step.tasks if task.kind == "pipeline"}
    assert ns["forward 2.0 from 1"] > LATENCY_NS > ns["forward 1.0 from 0"]
    assert ns["backward 1.0 from 2"] > LATENCY_NS > ns["backward 2.0 from 3"]


def test_sites__replicas_sum_once_a_step_if_asked() -> None:
    def count(plan: Plan) -> float:
        rows = rows_of(step_of(plan, two_sites(plan)))
        return next(row.count for row in rows if row.kind == "gradients of replicas")

    assert HSDP.microbatches == 2
    assert count(HSDP) == 2 * count(replace(HSDP, sum_once=True))


@pytest.mark.parametrize(
    ("plan", "count", "said"),
    [
        (HSDP, 3, "16 GPUs do not fill 3 sites"),
        (replace(HSDP, data=24, global_batch=24), 2, "whole nodes of 8"),
        (Plan(data=1, tensor=16), 2, "tensor: its 16 ranks are in several sites"),
        (replace(HSDP, data=24, global_batch=24, shard=12), 3, "12 shard ranks, 12 GPUs"),
    ],
)
def test_joined__refuses_what_is_not_estimated(plan: Plan, count: int, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        joined(network(), plan, count, link("ethernet-100"))
    assert said in str(caught.value)


def test_tolerance__is_of_the_link_between_sites() -> None:
    plan = replace(HSDP, sum_once=True)
    on = two_sites(plan, "ethernet-10")
    found = tolerance(MODEL, plan, gpu("h100"), on, 0.05)
    assert found.latency_ns.value is not None
    assert found.bytes_per_s.value is not None
    assert found.bytes_per_s.value < link("ethernet-10").bytes_per_s

    def with_rate(rate: float) -> float:
        between = replace(delayed(link("ethernet-10"), LATENCY_NS), bytes_per_s=rate)
        return train(MODEL, plan, gpu("h100"), joined(network(), plan, 2, between)).step_ns

    assert with_rate(found.bytes_per_s.value * 1.001) <= found.limit_ns * 1.001
    assert with_rate(found.bytes_per_s.value * 0.98) > found.limit_ns


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"1 ms"', ""),
        ('"nvlink"', ""),
        (
            "1e-3",
            "expected one of nvlink, pcie, network, torus, or the time of a message",
        ),
        ('"far"', 'or the time of a message between nodes, such as "1 ms"'),
        ('"2 min"', "must be 0 to 10 s"),
    ],
)
def test_links_file__has_a_latency_of_its_own(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "links.toml"
    file.write_text(f"[wan]\nbytes_per_s = 12.5e9\nlatency = {text}\n")
    if said:
        with pytest.raises(NetworkError) as caught:
            with_file(file)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    wan = with_file(file)["wan"]
    if text == '"1 ms"':
        assert wan.kind == "network"
        assert {each.step(True) for each in wan.protocols} == {1e6}


WORDS = ("train", "llama3-8b", "--gpu", "h100", "--inside", "nvlink4", "--data", 16)


def test_command__names_the_sites_and_what_would_help() -> None:
    words = [*WORDS, "--zero", 3, "--shard", 8, "--batch", 32, "--sites", 2]
    words += ["--between-sites", "ethernet-100", "--site-latency", "5 ms"]
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert "2 sites joined by ethernet-100: 12.25 GB/s of a site, 5 ms a message" in done.output
    assert "half the latency between sites" in done.output
    assert "--sum-replicas-once does it once" in done.output
    each, once = (
        json.loads(run(*words, *more, "--json", "-").output)
        for more in ((), ("--sum-replicas-once",))
    )
    assert once["step_ns"] < each["step_ns"]
    assert each["sites"] == 2


def test_command__all_gathers_between_sites_are_noted() -> None:
    words = ("--zero", 3, "--sites", 2, "--between-sites", "ethernet-100")
    done = run(*WORDS, *words)
    assert done.exit_code == 0, done.output
    assert "--shard 8 keeps that inside a site" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sites", 2), "give --between-sites"),
        (("--between-sites", "ethernet-100"), "give the number of --sites"),
        (("--site-latency", "5 ms"), "give the number of --sites"),
        (("--sites", 2, "--between-sites", "nvlink4"), "is no link of a network"),
        (("--sites", 5, "--between-sites", "ethernet-100"), "--sites: 16 GPUs do not fill 5"),
        (
            ("--sites", 2, "--between-sites", "ethernet-100", "--html", "x.html"),
            "leave out --curves",
        ),
        (("--sum-replicas-once",), "--sum-replicas-once: needs shard"),
    ],
)
def test_command__mistakes_are_one_line(words: tuple[object, ...], said: str) -> None:
    done = run(*WORDS, *words)
    assert done.exit_code == 2
    assert said in done.output


def test_tolerate__speaks_of_sites() -> None:
    words = ["tolerate", "llama3-8b", "--gpus", 16, "--inside", "nvlink4", "--zero", 3]
    words += ["--shard", 8, "--sites", 2, "--between-sites", "ethernet-100"]
    done = run(*words, "--site-latency", "1 ms", "--link", "ethernet-400")
    assert done.exit_code == 0, done.output
    assert "between sites  bandwidth" in done.output
    assert "1 ms (Simple)" in done.output
