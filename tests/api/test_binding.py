"""Compares the extension with its .pyi stub, and the status table with the exceptions."""

import ast
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import transport
from bench.lib import loops
from bench.lib.built import ROOT
from tests.core import rigs
from transport import errors, native

# Extension -> its stubs, and a function that loads it.
EXTENSIONS: dict[str, tuple[list[Path], Callable[[], ModuleType]]] = {
    "_native": (sorted(Path(native.PACKAGE).glob("_native*.pyi")), native.load),
    "_loops": ([ROOT / "bench/lib/_loops.pyi"], loops.load),
    "_rig": ([ROOT / "tests/core/_rig.pyi"], rigs.load),
}
each_extension = pytest.mark.parametrize("name", EXTENSIONS)


def declared(stubs: list[Path]) -> dict[str, set[str] | None]:
    """Public name of a module -> the public members if it is a class, else None."""
    names: dict[str, set[str] | None] = {}
    for node in [node for stub in stubs for node in ast.parse(stub.read_text()).body]:
        if isinstance(node, ast.ClassDef):
            inner = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AnnAssign)]
            members = {
                n.name if isinstance(n, ast.FunctionDef) else ast.unparse(n.target) for n in inner
            }
            names[node.name] = {name for name in members if not name.startswith("_")}
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = None
        elif isinstance(node, ast.AnnAssign):
            names[ast.unparse(node.target)] = None
    return names


def public(value: Any) -> set[str]:
    return {name for name in vars(value) if not name.startswith("_")}


@each_extension
def test_stub__names_what_the_binary_holds(name: str) -> None:
    stubs, load = EXTENSIONS[name]
    module, stub = load(), declared(stubs)
    assert public(module) == set(stub)
    for one, members in stub.items():
        assert isinstance(getattr(module, one), type) == (members is not None), one
        if members is not None:
            assert public(getattr(module, one)) == members, one


def test_door__every_public_name_resolves() -> None:
    assert set(transport.__all__) == {"__version__", *transport._PUBLIC}
    for name in transport._PUBLIC:
        assert getattr(transport, name) is not None
    with pytest.raises(AttributeError):
        _ = transport.nosuch


def arguments(function: ast.FunctionDef) -> list[str]:
    return [one.arg for one in (*function.args.args, *function.args.kwonlyargs)]


@each_extension
def test_stub__arguments_are_those_of_the_binary(name: str) -> None:
    stubs, load = EXTENSIONS[name]
    module = load()
    for node in [node for stub in stubs for node in ast.parse(stub.read_text()).body]:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = getattr(module, node.name) if isinstance(node, ast.ClassDef) else module
        for member in members:
            if not isinstance(member, ast.FunctionDef) or member.decorator_list:
                continue
            signature = (getattr(owner, member.name).__doc__ or "").split(" -> ")[0]
            # pybind11 writes a signature as (self: T, name: T, *, name: T); arg0 has no name.
            bound = re.findall(r"[(,] (\w+):|\((\w+):", signature.replace("(", "( ", 1))
            names = [first or second for first, second in bound]
            assert names == arguments(member), f"{node}: {signature}"


def test_status__every_outcome_has_one_exception() -> None:
    table = {name: code for name, code, _ in native.status_table()}
    classes = {error.status: error for error in errors.ERRORS}
    assert len(classes) == len(errors.ERRORS)
    assert set(classes) == set(table) - {"ok"}
    assert (table["ok"], table["would_block"], table["timed_out"]) == (
        errors.OK,
        errors.WOULD_BLOCK,
        errors.TIMED_OUT,
    )
    for name, code, text in native.status_table():
        if name == "ok":
            continue
        error = errors.error_for(code, "here")
        assert type(error) is classes[name]
        assert error.status == name
        assert str(error) == f"here: {text}"


def test_status__exceptions_are_what_users_expect_and_survive_pickling() -> None:
    expected = {
        errors.PeerDeadError: ConnectionError,
        errors.ConnectionClosedError: ConnectionError,
        errors.PeerSilentError: TimeoutError,
        errors.TimedOutError: TimeoutError,
        errors.RefusedError: ConnectionRefusedError,
        errors.InvalidArgumentError: ValueError,
        errors.AddressError: OSError,
        errors.OutOfMemoryError: MemoryError,
    }
    for kind, builtin in expected.items():
        assert issubclass(kind, builtin)
    for kind in errors.ERRORS:
        again = pickle.loads(pickle.dumps(kind("text")))
        assert type(again) is kind
        assert str(again) == "text"


@pytest.mark.parametrize(
    ("value", "writable", "kind", "words"),
    [
        (3, False, TypeError, "buf: needs an object with a buffer"),
        ("text", False, TypeError, "not str"),
        (b"abc", True, ValueError, "read-only"),
        (memoryview(bytearray(8))[::2], False, ValueError, "not contiguous"),
    ],
)
def test_buffer__refuses_by_name(value: Any, writable: bool, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        native.Buffer(value, "buf", writable)


def test_buffer__holds_the_memory() -> None:
    memory = bytearray(8)
    held = native.Buffer(memory, "buf", True)
    with pytest.raises(BufferError):
        memory.extend(b"more")
    del held
    memory.extend(b"more")
