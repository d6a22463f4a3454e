"""Tests what traffic shares, PCIe links and uplinks of leaf switches, against counts by hand."""

from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from transport.cli import weft
from transport.estimate.collectives import ALGORITHMS, estimate
from transport.estimate.computation import of_gpu
from transport.estimate.gpus import gpu
from transport.estimate.models import PRESETS, Model
from transport.estimate.networks import Link, Network, Protocol, of_links
from transport.estimate.plan import Plan
from transport.estimate.sharing import Sharing, Spread
from transport.estimate.simulated import scenario_of
from transport.estimate.step import Step
from transport.estimate.training import train
from transport.sim.run import Simulation
from transport.sim.scenario import from_tables

GB = 10**9
ONLY = (Protocol("only", 0, 0, 1.0),)
PCIE = Sharing(pcie_bytes_per_s=GB, is_inside=True)


def tree(sharing: Sharing, nic: float = 10 * GB, inside: float = GB) -> Network:
    """Nodes of 8 GPUs; without latency."""
    return Network("tree", "test", Link(nic, ONLY), 8, Link(inside, ONLY), sharing=sharing)


def seconds(network: Network, operation: str, size: float, ranks: int) -> float:
    return estimate(network, operation, size, ranks).time_ns / 1e9


@pytest.mark.parametrize("ranks", [8, 16, 64])
def test_pcie__carries_what_goes_to_peers_and_what_goes_to_the_nic(ranks: int) -> None:
    """Of an all-to-all, all but a GPU's own part passes its PCIe link, wherever it goes."""
    assert seconds(tree(PCIE), "all_to_all", GB, ranks) == pytest.approx((ranks - 1) / ranks)


def test_pcie__carries_a_ring_once() -> None:
    network = tree(PCIE)
    found = estimate(network, "all_reduce", GB, 16, algorithm="ring")
    assert found.time_ns / 1e9 == pytest.approx(2 * 15 / 16)
    assert found.limited_by == "inside"


def test_pcie__limits_a_faster_nic() -> None:
    """NVLink inside: 8 of 16 parts leave the node at the 1 GB/s of PCIe, not at the NIC's 10."""
    network = tree(replace(PCIE, is_inside=False), inside=100 * GB)
    found = estimate(network, "all_to_all", GB, 16)
    assert found.time_ns / 1e9 == pytest.approx(0.5)
    assert found.limited_by == "pcie"


@pytest.mark.parametrize(
    ("nics", "ranks", "expected"),
    [
        # 4 GPUs send 4 of 8 parts each over their switch's link to the CPU.
        (8, 8, 4 * 4 / 8),
        (8, 16, 4 * 4 / 16),
        # With one NIC, its switch gets what the 4 other GPUs send to 8 others, too.
        (1, 16, 4 * 4 / 16 + 4 * 8 / 16),
    ],
)
def test_switch__is_shared_by_its_gpus(nics: int, ranks: int, expected: float) -> None:
    sharing = replace(PCIE, gpus_per_switch=4, nics_per_node=nics)
    assert seconds(tree(sharing), "all_to_all", GB, ranks) == pytest.approx(
        max(expected, (ranks - 1) / ranks)
    )


def test_leaf__an_oversubscribed_fat_tree() -> None:
    """32 nodes of one GPU, 16 at a leaf, uplinks of half the rate."""
    fat = Network("fat", "test", Link(GB, ONLY), sharing=Sharing(oversubscription=2))
    found = estimate(fat, "all_to_all", GB, 32)
    assert found.time_ns / 1e9 == pytest.approx(2 * 16 / 32)
    assert found.limited_by == "uplinks"
    ring = estimate(fat, "all_reduce", GB, 32, algorithm="ring")
    assert ring.time_ns / 1e9 == pytest.approx(2 * 31 / 32)
    assert ring.limited_by == "between"
    assert estimate(fat, "all_to_all", GB, 16).limited_by == "between"


@pytest.mark.parametrize(
    ("operation", "algorithm", "spread", "part"),
    [
        ("all_reduce", "ring", Spread(), 1 / 4),
        ("all_reduce", "ring", Spread(apart=2), 2 / 4),
        ("all_reduce", "ring", Spread(apart=8), 1),
        ("all_reduce", "tree", Spread(), 6 / 4 / 4),
        ("all_reduce", "tree", Spread(apart=4), 1),
        # Halves of the blocks go 1, 2, 4 and 8 nodes further: 1, 2, 4 and 4 of 4 nodes' leave.
        ("all_gather", "pat", Spread(), 1 / 2 / 4 + 2 / 4 / 4 + 1 / 8 + 1 / 16),
        ("all_to_all", "pairs", Spread(), 12 / 15),
        ("all_to_all", "pairs", Spread(apart=2), 14 / 15),
        ("all_to_all", "pairs", Spread(apart=4), 1),
    ],
)
def test_leaf__what_leaves_leaves_of_four_nodes(
    operation: str, algorithm: str, spread: Spread, part: float
) -> None:
    """Of a group of 16 nodes; uplinks have a third of the bandwidth."""
    fat = Sharing(oversubscription=3, nodes_per_leaf=4)
    assert fat.leaf_bytes(operation, algorithm, GB, 16, spread) == pytest.approx(3 * part * GB)


def test_leaf__a_tree_has_three_edges_to_others() -> None:
    """In order, a node whose lowest bit is d is below the one with it cleared and the next set."""
    nodes, leaf, ends = 256, 16, 0
    for node in range(1, nodes):
        lowest = node & -node
        above = (node ^ lowest) | 2 * lowest
        above = above if above < nodes else node ^ lowest
        ends += 2 * (node // leaf != above // leaf)
    assert ends / (nodes / leaf) == pytest.approx(3, abs=0.3)


def test_leaf__sends_between_stages_leave_it_as_far_as_they_go() -> None:
    """Four stages of 2 nodes: a send goes 2 nodes further, half of the senders to another leaf."""
    fat = Sharing(oversubscription=3, nodes_per_leaf=4)
    spread = Spread(apart=2, nodes=4)
    assert fat.leaf_bytes("send", "pairs", GB, 2, spread) == pytest.approx(1.5 * GB)
    assert fat.leaf_bytes("send", "pairs", GB, 2, Spread(apart=2, nodes=2)) == 0


@pytest.mark.parametrize("shape", ["tensor", "pipeline"])
def test_leaf__simulated_steps_agree(shape: str) -> None:
    """Groups two nodes apart, and stages of four, on leaves of four, uplinks of a quarter."""
    model = replace(PRESETS["llama2-7b"], layers=4, sequence=1_024)
    plan = Plan(tensor=16, data=16, global_batch=16)
    if shape == "pipeline":
        plan = Plan(tensor=8, pipeline=4, data=4, global_batch=16)
    assert simulated_share(model, plan) == pytest.approx(1, abs=0.15)


def simulated_share(model: Model, plan: Plan) -> float:
    """The simulated step / the estimated one; times are virtual."""
    fat = Sharing(oversubscription=4, nodes_per_leaf=4)
    network, one = of_links("ethernet-100", "nvlink4", sharing=fat), gpu("h100")
    computation = of_gpu(model, plan, one)
    estimated = train(model, plan, one, network, computation)
    step = Step(model, plan, computation, network)
    made = scenario_of(step, step.build(), estimated.step_ns, 32_768)
    simulation = Simulation(from_tables(made.tables, file="test"))
    while simulation.step():
        pass
    return float(simulation.result().steps[0]["step_ns"]) / estimated.step_ns


def test_domain_of_72__has_no_network_in_it() -> None:
    """GB200 NVL72: 2 (71/72) 1 GB at 18 links of 40.1 GB/s, and latency."""
    network = of_links("ethernet-400", "nvlink5", 72)
    found = estimate(network, "all_reduce", GB, 72, algorithm="ring")
    assert found.bytes_ns == pytest.approx(2 * 71 / 72 / 721.8 * 1e9)
    assert found.limited_by == "inside"


operations = st.sampled_from([one for one in ALGORITHMS if one != "send"])
sharings = st.builds(
    Sharing,
    pcie_bytes_per_s=st.sampled_from([0.0, GB]),
    is_inside=st.booleans(),
    gpus_per_switch=st.sampled_from([0, 1, 2, 4, 8]),
    nics_per_node=st.sampled_from([0, 1, 2, 8]),
    oversubscription=st.floats(1, 8),
    nodes_per_leaf=st.integers(1, 32),
)
nodes = st.integers(1, 64)


@given(operations, sharings, nodes, st.floats(1, 1e10), st.floats(1, 10), st.floats(1, 10))
def test_estimate__bandwidth_never_hurts_and_bytes_never_help(
    operation: str, sharing: Sharing, count: int, size: float, faster: float, more: float
) -> None:
    base = seconds(tree(sharing), operation, size, 8 * count)
    quick = tree(sharing, nic=10 * GB * faster, inside=GB * faster)
    assert seconds(quick, operation, size, 8 * count) <= base * (1 + 1e-9)
    assert seconds(tree(sharing), operation, size * more, 8 * count) >= base * (1 - 1e-9)


@given(operations, sharings, nodes, st.floats(1, 1e10))
def test_estimate__sharing_never_helps(
    operation: str, sharing: Sharing, count: int, size: float
) -> None:
    shared, alone = (seconds(tree(one), operation, size, 8 * count) for one in (sharing, Sharing()))
    assert shared >= alone


@given(st.sampled_from(["pcie3", "pcie4", "pcie5"]), st.integers(1, 63))
def test_pcie__more_nodes_never_speed_up_an_all_to_all(name: str, count: int) -> None:
    network = of_links("ethernet-800", name)
    few, many = (seconds(network, "all_to_all", GB, 8 * one) for one in (count, count + 1))
    assert many >= few


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pcie", "nvlink4"], "pcie: nvlink4: must be one of pcie3, pcie4, pcie5"),
        (["--pcie", "pcie4", "--inside", "pcie3"], "are linked by another one: leave it out"),
        (["--gpus-per-switch", "4"], "needs GPUs linked by PCIe inside a node"),
        (["--nodes-per-leaf", "4"], "--nodes-per-leaf needs --oversubscription"),
        (["--oversubscription", "0.5"], "0.5 is not in the range"),
        (["--oversubscription", "nan"], "nan is not in the range"),
    ],
)
def test_options__mistakes_are_one_line(words: list[str], said: str) -> None:
    done = CliRunner().invoke(weft, ["estimate", "collective", "all_to_all", *words])
    assert done.exit_code == 2
    assert said in done.output


def test_simulate__has_the_oversubscribed_uplinks() -> None:
    model, plan = PRESETS["gpt2"], Plan(data=16, global_batch=16)
    computation = of_gpu(model, plan, gpu("h100"))
    network = of_links("ethernet-100", "nvlink4", sharing=Sharing(oversubscription=4))
    step = Step(model, plan, computation, network)
    fabric = scenario_of(step, step.build(), 1e9, 65_536).tables["network"]
    rates = [int(fabric[key].removesuffix(" b/s")) for key in ("rate", "uplink_rate")]
    assert rates[0] == 4 * rates[1]
