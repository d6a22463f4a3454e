"""Fabrics of up to thousands of hosts, simulated: scenarios, runs, results, sweeps.

The protocol that runs is the real one; clocks and chance come from the scenario.
"""

from transport.sim.errors import ScenarioError
from transport.sim.result import Result
from transport.sim.run import Simulation, run
from transport.sim.scenario import Scenario, load, parse, shipped

__all__ = ["Result", "Scenario", "ScenarioError", "Simulation", "load", "parse", "run", "shipped"]
