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
from transport.compiler.emit import DESCRIPTOR, NEEDS, event_bytes, result_bytes
from transport.compiler.library import Library, load
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
def test_conformance__of_every_policy(policy: Policy, folder: Path) -> None:
    """Compiles it twice and checks symbols, descriptor and bytes of the libraries."""
    path = compile_policy(policy, folder / "one.so")
    found = symbols(path.read_bytes(), dynamic=True)
    assert found.undefined <= NEEDS, "the library needs Python"
    assert found.defined == {DESCRIPTOR}
    first = path.rename(folder / f"{policy.family.name}_{policy.name}.so")
    descriptor_matches_the_records(load(first), policy)
    again = compile_policy(policy, folder / "one.so")
    assert again.read_bytes() == first.read_bytes(), "the same source gave another library"


def descriptor_matches_the_records(library: Library, policy: Policy) -> None:
    head = library.descriptor
    assert (head.descriptor_bytes, head.abi_version) == (256, 2)
    assert library.name == policy.name
    assert library.family is policy.family
    fields = [line.split() for line in library.params_fields.splitlines()]
    assert [field[0] for field in fields] == list(policy.params.defaults)
    assert head.flow_bytes == policy.flow.size_bytes
    assert head.shared_bytes == policy.shared.size_bytes
    assert head.event_bytes == event_bytes(policy)
    assert head.result_bytes == result_bytes(policy)
    assert library.params_default == Interpreted(policy).params_default
    assert len(head.source_sha256) == 64


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
    """`bench policy` itself checks that results are equal; 3,000 calls give no useful times."""
    bench = pytest.importorskip("bench.policy")
    if not (shutil.which("gcc") or shutil.which("clang")):
        pytest.skip("neither gcc nor clang is installed")
    found, _ = bench.measure(calls=3_000, rounds=1)
    assert found["digest"] != "0" * 16
