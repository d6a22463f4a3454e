"""Runs a scenario a second time with its own policies, to show them beside the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from transport.policies.choice import split
from transport.sim import Result, Scenario, Simulation
from transport.sim.groups import BETWEEN


def own_simulation(
    scenario: Scenario, policies: Mapping[str, str], wanted: bool | None
) -> Simulation | None:
    """The run with the scenario's own policies; None: it is not wanted, or no other are given.

    wanted: the option --compare or --no-compare; None: what the scenario says.
    """
    compare = scenario.keys["compare"] if wanted is None else wanted
    return Simulation(scenario, {}) if compare and policies else None


def beside(
    result: Result, own: Simulation | None, run: Callable[[Simulation], Result]
) -> dict[str, Result]:
    """The results by label: the user's, then that of the scenario's own policies.

    A single result has the label "". The second run is left out if either is interrupted.
    """
    if own is None or result.partial:
        return {"": result}
    other = run(own)
    if other.partial:
        return {"": result}
    mine, default = labels(result.policies, other.policies)
    return {mine: result, default: other}


def labels(mine: Mapping[str, str], default: Mapping[str, str]) -> tuple[str, str]:
    """The labels of the two runs: the policies in which they differ."""
    families = [one for one in mine if mine[one] != default.get(one)]
    if not families:
        return "given", "default"
    given = ", ".join(_each(mine[one], _file) for one in families)
    own = ", ".join(_each(default[one], _name) for one in families if one in default)
    return given, f"default ({own or 'none'})"


def _each(text: str, shown: Callable[[str], str]) -> str:
    """The policies of all groups in a text of Result.policies, each as it is shown."""
    return BETWEEN.join(shown(one) for one in text.split(BETWEEN))


def _file(text: str) -> str:
    return text.rpartition("/")[2]


def _name(text: str) -> str:
    return split(text)[0].rpartition("/")[2]
