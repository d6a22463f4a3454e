"""Finds the library of a policy given as name, file or object, and formats its parameters.

The engine resolves the names of shipped policies. Files, and policies that other packages
registered, are compiled into the user's cache on first use.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from congestion.api import FAMILIES, Policy
from congestion.registry import SHIPPED, RegistryError, survey
from transport import native
from transport.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

    from transport import native

# A registered name, a .py or .so file, or a declared policy. Text may carry parameters, as in
# "swift:decrease_max=0.3".
PolicyName: TypeAlias = str | Path | Policy
Number: TypeAlias = int | float
Parameter: TypeAlias = "Number | Sequence[Number] | np.ndarray[Any, Any]"


class Chooser(Protocol):
    """A plan of a simulation run; its policies are chosen by text, as "swift:decrease_max=0.3"."""

    def choose_text(self, family: str, text: str, directories: list[str]) -> str: ...


class HasSets(Protocol):
    """A plan with several sets of policies, the first of which has the number 0."""

    def choose_text(
        self, family: str, text: str, directories: list[str], policy_set: int
    ) -> str: ...


@dataclass(frozen=True)
class OneSet:
    """Chooses the policies of one set of a plan."""

    plan: HasSets
    number: int

    def choose_text(self, family: str, text: str, directories: list[str]) -> str:
        return self.plan.choose_text(family, text, directories, self.number)


class PolicyRefusedError(InvalidArgumentError):
    """A policy exists and cannot be compiled or loaded."""


@dataclass(frozen=True)
class PolicyState:
    """A policy in use, with its current parameters."""

    family: str
    name: str
    source_sha256: str
    params: dict[str, Any]  # numbers, and lists of numbers for array fields


def state_of(info: native.PolicyInfo) -> PolicyState:
    """Converts the engine's PolicyInfo."""
    params = values_of(info.params_fields, info.params)
    return PolicyState(info.family, info.name, info.source_sha256, params)


def values_of(fields: str, record: bytes) -> dict[str, Any]:
    """The parameters in a record, by name. fields: a line "name kind offset count" for each."""
    params: dict[str, Any] = {}
    for line in fields.splitlines():
        name, kind, offset, count = line.split()
        code = f"<{int(count)}{'q' if kind == 'i' else 'd'}"
        values = struct.unpack_from(code, record, int(offset))
        params[name] = values[0] if len(values) == 1 else list(values)
    return params


def _number(name: str, value: Any) -> str:
    # Convert a NumPy number to a Python number, because its repr contains its type.
    item = getattr(value, "item", None)
    value = item() if callable(item) else value
    if isinstance(value, bool | int):
        return str(int(value))
    if isinstance(value, float):
        return repr(value)
    raise InvalidArgumentError(f"parameter {name}: must be a number, not {type(value).__name__}")


def params_text(params: Mapping[str, Parameter]) -> str:
    """Parameters as the engine parses them: "decrease_max=0.3,weight=1/0/0.5"."""
    written = []
    for name, value in params.items():
        many = isinstance(value, Sequence) or hasattr(value, "__len__")
        each: Any = value if many and not isinstance(value, str) else [value]
        written.append(f"{name}={'/'.join(_number(name, one) for one in each)}")
    return ",".join(written)


def resolve(family: str, policy: PolicyName) -> str:
    """A policy as the engine can load it: a shipped name or a library's path, with parameters."""
    if family not in FAMILIES:
        raise InvalidArgumentError(
            f"no policy family {family!r}: choose one of {', '.join(sorted(FAMILIES))}"
        )
    if isinstance(policy, Policy):
        return _library(family, policy)
    name, colon, values = split(str(policy))
    if name.endswith(".py"):
        return _library(family, name) + colon + values
    said, slash, plain = name.partition("/")
    if slash and said == family and "/" not in plain and not plain.endswith(".so"):
        name, slash = plain, ""
    if slash or name.endswith(".so") or name == "none" or _shipped(family, name):
        return name + colon + values
    return _library(family, _registered(family, name)) + colon + values


def split(text: str) -> tuple[str, str, str]:
    """Splits text into (name or path, colon, parameters)."""
    return native.policy_parts(text)


def short_text(policy: PolicyName) -> str:
    """A policy as a text for people: its name, a file without its folder, and its parameters."""
    if isinstance(policy, Policy):
        return policy.name
    name, colon, values = split(str(policy))
    return name.rpartition("/")[2] + colon + values


def labels(policies: Sequence[Mapping[str, str]]) -> list[str]:
    """For each set of policies, texts by family, the policies in which it differs from others."""
    families = dict.fromkeys(family for one in policies for family in one)
    differ = [
        family for family in families if len({one.get(family, "none") for one in policies}) > 1
    ]
    if len(differ) == 1:
        return [one.get(differ[0], "none") for one in policies]
    return [
        " ".join(f"{family}={one.get(family, 'none')}" for family in differ) for one in policies
    ]


def is_broken(text: str) -> bool:
    """Whether the text names an existing file that cannot be loaded as a policy of any family."""
    file = split(text)[0]
    return Path(file).is_file() and all(native.policy_problem(one, file) for one in FAMILIES)


def _shipped(family: str, name: str) -> bool:
    folder = {"path": "paths"}.get(family, family)
    return f"congestion.{folder}.{name}" in SHIPPED


def _registered(family: str, name: str) -> Policy:
    try:
        known = survey()
    except RegistryError as error:
        raise PolicyRefusedError(str(error)) from None
    if (family, name) not in known.entries:
        for problem in known.problems_of(family, name):
            raise PolicyRefusedError(problem.text)
        there = ", ".join(sorted(n for f, n in known.entries if f == family))
        raise InvalidArgumentError(f"no {family} policy {name!r}: choose one of {there}")
    return known.entries[family, name].policy


def _library(family: str, policy: Policy | str) -> str:
    from transport.compiler import PolicyError, cached_policy, source
    from transport.compiler.errors import INSTALL

    if isinstance(policy, str) and not Path(policy).is_file():
        raise InvalidArgumentError(f"{policy}: no such file")
    try:
        declared = source.load(policy)
        if declared.family.name != family:
            raise InvalidArgumentError(
                f"{policy if isinstance(policy, str) else policy.name} is a "
                f"{declared.family.name} policy; give a {family} policy"
            )
        return str(cached_policy(declared))
    except PolicyError as error:
        raise PolicyRefusedError(str(error)) from None
    except ImportError as error:
        raise PolicyRefusedError(f"compiling a policy needs numba: {INSTALL} ({error})") from None


def policy_text(family: str, policy: PolicyName, params: Mapping[str, Parameter]) -> str:
    """One policy with parameters, as the engine parses it."""
    text = resolve(family, policy)
    if not params:
        return text
    name, _, given = split(text)
    return name + ":" + ",".join(filter(None, (given, params_text(params))))


def set_text(chosen: Mapping[str, PolicyName] | None) -> str:
    """Policies of some families as text: "window=dctcp path=reps"."""
    given: object = chosen
    if given is not None and not isinstance(given, Mapping):
        kind = type(given).__name__
        raise TypeError(f'policies: must be a mapping, as {{"window": "dctcp"}}, not {kind}')
    chosen = chosen or {}
    return " ".join(f"{family}={resolve(family, policy)}" for family, policy in chosen.items())


def resolve_settings(environment: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The given knobs and the environment's policy knobs, with all policies resolved."""
    variables = {name.removeprefix("WEFT_").lower(): name for name in given}
    named = {
        name: value
        for name, value in environment.items()
        if name.startswith("WEFT_")
        and _names_policies(name)
        and name.removeprefix("WEFT_").lower() not in variables
    }
    return {name: _resolved(name, value) for name, value in (*named.items(), *given.items())}


def _names_policies(name: str) -> bool:
    field = name.removeprefix("WEFT_").lower()
    return field == "traffic_classes" or (
        field.endswith("_policy") and field.removesuffix("_policy") in FAMILIES
    )


def _resolved(name: str, value: str) -> str:
    if not value or not _names_policies(name):
        return value
    field = name.removeprefix("WEFT_").lower()
    if field == "traffic_classes":
        return "; ".join(_class_text(one) for one in value.split(";") if one.strip())
    return resolve(field.removesuffix("_policy"), value)


def _class_text(entry: str) -> str:
    number, _, choices = entry.strip().partition(" ")
    words = native.policy_choices(choices)
    for index, word in enumerate(words):
        family, equals, policy = word.partition("=")
        if equals and family in FAMILIES:
            words[index] = f"{family}={resolve(family, policy)}"
    return " ".join([number, *words])


def choose(
    plan: Chooser,
    family: str,
    policy: PolicyName,
    params: Mapping[str, Any],
) -> str:
    """Loads a policy into a plan; returns its name. Raises InvalidArgumentError on failure."""
    if family not in FAMILIES:
        raise InvalidArgumentError(
            f"no policy family {family!r}: choose one of {', '.join(sorted(FAMILIES))}"
        )
    text = policy_text(family, policy, params)
    if family == "credit" and text == "none":
        return "none"
    try:
        return plan.choose_text(family, text, [str(native.POLICY_DIRECTORY)])
    except ValueError as error:
        kind = PolicyRefusedError if is_broken(text) else InvalidArgumentError
        raise kind(str(error)) from None
