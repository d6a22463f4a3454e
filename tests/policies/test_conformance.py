"""Decides that a policy means the same interpreted, compiled in the process and loaded from a file.

Never touches the engine. Runs over all registered policies.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from congestion.api import Policy
from congestion.registry import policies
from transport.compiler import Interpreted, compile_object, compile_policy, source
from transport.compiler.emit import DESCRIPTOR, NEEDS
from transport.compiler.library import Library, jit, load
from transport.compiler.objectfile import symbols

from .events import EventSource

EVENTS = 2_500
PATHS = 8

every_policy = pytest.mark.parametrize(
    "policy",
    [entry.policy for entry in policies().values()],
    ids=[f"{family}-{name}" for family, name in policies()],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policies")


class Side:
    """One way to run a policy, with records of its own."""

    def __init__(self, policy: Policy, runner: Library | Interpreted) -> None:
        self.runner = runner
        self.flow = policy.flow.zeros()
        self.shared: Any = (
            None
            if not policy.family.shared
            else policy.shared.zeros(PATHS if policy.family.shared == "path" else 1)
        )
        self.params = policy.params.filled()
        self.result = policy.family.result.zeros()

    def call(self, hook: str, event: Any) -> int:
        self.result[:] = 0
        return self.runner.call(
            hook,
            flow=self.flow,
            shared=self.shared,
            params=self.params,
            event=event,
            result=self.result,
        )

    def records(self) -> list[bytes]:
        shared = b"" if self.shared is None else self.shared.tobytes()
        return [self.flow.tobytes(), shared, self.result.tobytes(), self.params.tobytes()]


def compare(policy: Policy, runners: list[Library | Interpreted], seed: int) -> None:
    sides = [Side(policy, runner) for runner in runners]
    source, draw = EventSource(policy, seed, PATHS), random.Random(seed + 1)
    previous = policy.family.result.zeros()
    for step in range(EVENTS):
        hook = policy.family.hooks[0] if step == 0 else draw.choice(policy.family.hooks[1:])
        event = source.next(hook, previous)
        if policy.family.name == "path":
            for index in range(PATHS):
                head = (
                    draw.choice((0, 1, 1, 1)),
                    draw.randint(0, 1 << 20),
                    draw.randint(0, 90_000),
                )
                for side in sides:
                    for name, value in zip(
                        ("usable", "inflight_bytes", "rtt_ns"), head, strict=True
                    ):
                        side.shared[name][index] = value
        before = event.tobytes()
        statuses = [side.call(hook, event) for side in sides]
        assert statuses == [0] * len(sides), (step, hook)
        assert event.tobytes() == before
        for side in sides[1:]:
            assert side.records() == sides[0].records(), (step, hook)
        previous = sides[0].result.copy()
        for name in previous.dtype.names:
            assert np.isfinite(previous[name][0]), (step, hook, name)


@every_policy
def test_conformance__compiled_equals_interpreted(policy: Policy, folder: Path) -> None:
    path = compile_policy(policy, folder / f"{policy.family.name}_{policy.name}.so")
    compare(policy, [Interpreted(policy), load(path), jit(policy)], seed=7)


@every_policy
def test_conformance__library_needs_no_python(policy: Policy, folder: Path) -> None:
    path = compile_policy(policy, folder / f"symbols_{policy.family.name}_{policy.name}.so")
    found = symbols(path.read_bytes(), dynamic=True)
    assert found.undefined <= NEEDS
    assert found.defined == {DESCRIPTOR}


@every_policy
def test_conformance__descriptor_matches_the_records(policy: Policy, folder: Path) -> None:
    library = load(compile_policy(policy, folder / f"head_{policy.family.name}_{policy.name}.so"))
    head = library.descriptor
    assert (head.descriptor_bytes, head.abi_version) == (224, 1)
    assert library.name == policy.name
    assert library.family is policy.family
    assert head.flow_bytes == policy.flow.size_bytes
    assert head.shared_bytes == policy.shared.size_bytes
    assert head.event_bytes == policy.family.event.size_bytes
    assert library.params_default == Interpreted(policy).params_default
    assert len(head.source_sha256) == 64


@every_policy
def test_conformance__results_stay_in_range(policy: Policy, folder: Path) -> None:
    """A path that exists, a credit that does not fall, a window that is positive."""
    side = Side(policy, jit(policy))
    source, draw = EventSource(policy, 11, PATHS), random.Random(12)
    granted = 0
    for step in range(EVENTS):
        hook = policy.family.hooks[0] if step == 0 else draw.choice(policy.family.hooks[1:])
        if policy.family.name == "path":
            side.shared["usable"] = [draw.randint(0, 1) for _ in range(PATHS)]
        event = source.next(hook, side.result)
        assert side.call(hook, event) == 0
        if hook == "pick":
            chosen = int(side.result["path"][0])
            assert 0 <= chosen < PATHS
            assert side.result["burst_bytes"][0] > 0
            assert side.shared["usable"][chosen] or not side.shared["usable"].any()
        elif policy.family.name == "credit":
            assert side.result["granted_bytes"][0] >= granted
            granted = int(side.result["granted_bytes"][0])
        elif policy.family.name == "window":
            assert 0 < side.result["window_bytes"][0] <= event["window_bytes_max"][0]
        elif policy.family.name == "loss":
            assert -1 <= side.result["lost_sent_before_ns"][0] <= event["now_ns"][0]


@every_policy
def test_conformance__same_source_same_library(policy: Policy, folder: Path) -> None:
    one = compile_policy(policy, folder / "one.so").read_bytes()
    assert compile_policy(policy, folder / "two.so").read_bytes() == one


def test_conformance__fixed_objects_carry_their_own_symbol(folder: Path) -> None:
    for family in ("window", "credit", "path", "loss"):
        policy = policies()[family, "fixed"].policy
        image = compile_object(policy, folder / f"fixed_{family}.o").read_bytes()
        assert symbols(image).defined == {f"{DESCRIPTOR}_{family}_fixed"}


def test_conformance__the_example_is_a_policy_like_any_other(folder: Path) -> None:
    path = Path(__file__).parents[2] / "examples" / "my_policy.py"
    assert len(path.read_text().splitlines()) <= 30
    policy = source.load(path)
    compare(policy, [Interpreted(policy), load(compile_policy(path, folder / "mine.so"))], seed=3)


def test_bench_policy__runs_small() -> None:
    """Equal results are asserted inside; the ratio of so few calls says nothing."""
    bench = pytest.importorskip("bench.policy")
    if not (shutil.which("gcc") or shutil.which("clang")):
        pytest.skip("neither gcc nor clang is installed")
    found = bench.measure(calls=3_000, rounds=1)
    assert found["digest"] != "0" * 16
