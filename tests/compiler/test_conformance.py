"""Tests compiled libraries of all registered policies: descriptor, symbols, reproducible bytes.

tests/conformance tests their behaviour.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("numba")

from congestion.api import Policy
from congestion.registry import policies
from transport.compiler import Interpreted, compile_object, compile_policy, source
from transport.compiler.emit import DESCRIPTOR, NEEDS
from transport.compiler.library import load
from transport.compiler.objectfile import symbols

every_policy = pytest.mark.parametrize(
    "policy",
    [entry.policy for entry in policies().values()],
    ids=[f"{family}-{name}" for family, name in policies()],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policies")


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
    assert (head.descriptor_bytes, head.abi_version) == (232, 2)
    assert library.name == policy.name
    assert library.family is policy.family
    fields = [line.split() for line in library.params_fields.splitlines()]
    assert [field[0] for field in fields] == list(policy.params.defaults)
    assert head.flow_bytes == policy.flow.size_bytes
    assert head.shared_bytes == policy.shared.size_bytes
    assert head.event_bytes == policy.family.event.size_bytes
    assert library.params_default == Interpreted(policy).params_default
    assert len(head.source_sha256) == 64


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
    library = load(compile_policy(path, folder / "mine.so"))
    assert library.name == policy.name


def test_bench_policy__runs_small() -> None:
    """`bench policy` itself checks that results are equal; so few calls give no useful times."""
    bench = pytest.importorskip("bench.policy")
    if not (shutil.which("gcc") or shutil.which("clang")):
        pytest.skip("neither gcc nor clang is installed")
    found, _ = bench.measure(calls=3_000, rounds=1)
    assert found["digest"] != "0" * 16
