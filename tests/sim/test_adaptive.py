"""Switches that choose a port for each packet by what their ports hold."""

import pytest

from transport.sim import ScenarioError, Simulation, planned, run
from transport.sim.result import Result

from .support import needs_fabric, scenario

pytestmark = needs_fabric

NETWORK = """
hosts = 16
hosts_per_leaf = 4
spines = 4
ecmp = "{ecmp}"
"""
WORK = """
[policies]
window = "dctcp"
path = "single:burst_bytes=4096"
{more}
[[workload]]
pattern = "permutation"
size_bytes = "1 MB"
"""


def simulated(ecmp: str, more: str = "", threads: int = 1) -> Result:
    one = scenario(NETWORK.format(ecmp=ecmp), WORK.format(more=more))
    return run(one, threads=threads, check=True)


def idle_uplinks(result: Result) -> int:
    network = result.scenario.network
    ports = [
        network.find_ports(f"leaf{leaf}>spine{spine}")[0] for leaf in (0, 1) for spine in range(4)
    ]
    return sum(int(result.ports["bytes"][port]) == 0 for port in ports)


@pytest.mark.parametrize("ecmp", ["adaptive", "drill"])
def test_adaptive__one_path_uses_all_uplinks(ecmp: str) -> None:
    found = simulated(ecmp)
    assert found.good
    assert idle_uplinks(found) == 0
    hashed = simulated("hashed").summary()["completion_ns"]
    assert found.summary()["completion_ns"] < 0.7 * hashed


@pytest.mark.parametrize("ecmp", ["adaptive", "drill"])
def test_adaptive__goes_round_a_link_that_is_down(ecmp: str) -> None:
    down = "[[events]]\nlink = 'leaf0-spine1'\nat_ns = 20_000\nup = false\n"
    found = simulated(ecmp, down)
    assert found.good
    (port,) = found.scenario.network.find_ports("leaf0>spine1")
    held = int(found.ports["lost"][port])
    # Only what the port held is lost. The spine does not know that its link to the leaf is down.
    assert held * 4_160 <= found.scenario.network.ports["queue_bytes_max"][port] + 4_160


@pytest.mark.parametrize("ecmp", ["adaptive", "drill"])
def test_adaptive__threads_do_not_change_a_run(ecmp: str) -> None:
    assert simulated(ecmp).fingerprint == simulated(ecmp, threads=2).fingerprint


def test_adaptive__has_no_routes_to_plan() -> None:
    one = scenario(NETWORK.format(ecmp="adaptive"), WORK.format(more=""))
    simulation = Simulation(one)
    with pytest.raises(ScenarioError, match="no routes to plan"):
        planned.routes_of(one.network, one.work, simulation.plan)
