"""Applies settings of `--set` and of sweeps to scenario keys, policies and policy parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from congestion.api import FAMILIES
from transport.errors import InvalidArgumentError
from transport.ground.text import nearest
from transport.policies.choice import params_text, split
from transport.sim.scenario import Scenario

HEAD = "policies"
DEFAULT_POLICIES = {"window": "swift", "path": "power_of_two", "loss": "rack"}


def applied(
    scenario: Scenario, policies: Mapping[str, str], settings: Mapping[str, Any]
) -> tuple[Scenario, dict[str, str]]:
    """Returns the scenario with its keys changed, and the policies to run it with.

    Keys of `settings`: "policies.window" is the policy of a family, "policies.window.p_ns" is one
    of its parameters, other keys belong to the scenario. `policies` replace the scenario's own.
    """
    keys, texts, params = _sorted(settings)
    chosen = dict(policies)
    for family, value in texts.items():
        if family in policies:
            raise InvalidArgumentError(
                f"the {family} policy is given twice, by an option and by {HEAD}.{family}: "
                "leave one out"
            )
        chosen[family] = str(value)
    changed = scenario.changed(keys)
    for family, values in params.items():
        text = chosen.get(family)
        if text is not None:
            _refuse_twice(family, text, values)
        text = text or own_policy(changed, family)
        if text is None:
            name = f"{HEAD}.{family}.{next(iter(values))}"
            raise InvalidArgumentError(
                f"{name}: the scenario has no {family} policy: set {HEAD}.{family}"
            )
        chosen[family] = with_params(text, values)
    return changed, chosen


def _refuse_twice(family: str, text: str, values: Mapping[str, Any]) -> None:
    """Refuses a parameter that is given both in the policy's text and as a setting."""
    for name in _named(text):
        if name in values:
            raise InvalidArgumentError(
                f"{name} of the {family} policy is given twice, in {text!r} and by "
                f"{HEAD}.{family}.{name}: leave one out"
            )


def _named(text: str) -> list[str]:
    """The names of the parameters in a policy's text."""
    given = split(text)[2]
    return [one.partition("=")[0].strip() for one in given.split(",") if one.strip()]


def is_of_policies(key: str) -> bool:
    """Whether a setting is a policy or a policy parameter, and not a key of the scenario."""
    return key.partition(".")[0] == HEAD


def _sorted(
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Any]]]:
    """Splits settings into scenario keys, policies by family and parameters by family."""
    keys: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    params: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        if not is_of_policies(key):
            keys[key] = value
            continue
        rest = key.split(".")[1:]
        if not rest or rest[0] not in FAMILIES:
            hint = nearest(rest[0], list(FAMILIES)) if rest else ""
            there = ", ".join(FAMILIES)
            raise InvalidArgumentError(f"{key}: no such policy family{hint}: choose from {there}")
        if len(rest) > 2 or "" in rest:
            raise InvalidArgumentError(f"{key}: write {HEAD}.FAMILY or {HEAD}.FAMILY.PARAMETER")
        if str(value).strip() == "":
            raise InvalidArgumentError(f"{key}: give a value")
        if len(rest) == 1:
            texts[rest[0]] = value
        else:
            params.setdefault(rest[0], {})[rest[1]] = value
    return keys, texts, params


def own_policy(scenario: Scenario, family: str) -> str | None:
    """The scenario's policy of a family, or weft's default; None if the family has neither."""
    text = scenario.keys[HEAD].get(family)
    if text is not None:
        return beside(scenario, text)
    return DEFAULT_POLICIES.get(family)


def beside(scenario: Scenario, policy: str) -> str:
    """The policy's text with a file path resolved against the scenario's folder."""
    name, colon, values = split(policy)
    if name.endswith((".py", ".so")) and not Path(name).is_absolute():
        return str(scenario.folder / name) + colon + values
    return policy


def with_params(text: str, values: Mapping[str, Any]) -> str:
    """A policy's text with parameters added or replaced."""
    name, _, given = split(text)
    kept = [
        one
        for one in given.split(",")
        if one.strip() and one.partition("=")[0].strip() not in values
    ]
    for key, value in values.items():
        kept.append(f"{key}={value}" if isinstance(value, str) else params_text({key: value}))
    return f"{name}:{','.join(kept)}"
