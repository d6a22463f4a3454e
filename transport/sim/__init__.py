"""Simulates fabrics of up to thousands of hosts: scenarios, runs, results and sweeps.

The simulation runs the real protocol code on a virtual clock with seeded randomness.
"""

from transport.sim.alone import with_alone
from transport.sim.errors import ScenarioError
from transport.sim.result import Result
from transport.sim.run import Simulation, run
from transport.sim.scenario import Scenario, load, parse, shipped

__all__ = [
    "Result",
    "Scenario",
    "ScenarioError",
    "Simulation",
    "load",
    "parse",
    "run",
    "shipped",
    "with_alone",
]
