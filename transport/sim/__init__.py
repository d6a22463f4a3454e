"""Fabrics of up to thousands of hosts, simulated: scenarios, runs, results, sweeps.

Never reads a clock, a socket or unseeded chance; the protocol that runs is the real one.
"""

from transport.sim.errors import ScenarioError
from transport.sim.result import Result
from transport.sim.run import Simulation, run
from transport.sim.scenario import Scenario, load, parse, shipped

__all__ = ["Result", "Scenario", "ScenarioError", "Simulation", "load", "parse", "run", "shipped"]
