"""Tests errors of the registry and of policy declarations; records.h must be up to date."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from congestion import registry
from congestion.api import FAMILIES, path_policy, record, window_policy
from congestion.header import header_text
from congestion.registry import Entry, RegistryError, find, merged, policies


def hook(flow: Any, params: Any, event: Any, result: Any) -> None:
    result.window_bytes = 1.0


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.path = 0


HOOKS: dict[str, Any] = {"on_start": hook, "on_ack": hook, "on_loss": hook, "on_timeout": hook}


def test_header__is_fresh() -> None:
    path = Path(__file__).parents[2] / "native" / "policy" / "records.h"
    assert path.read_text() == header_text(), "run python -m transport.compiler --header"


def test_registry__every_family_has_its_fixed() -> None:
    for family in FAMILIES:
        assert find(family, "fixed").family.name == family


def test_registry__an_unknown_name_lists_what_exists() -> None:
    with pytest.raises(RegistryError, match=r"no window policy 'vegas': there are .*fixed.*swift"):
        find("window", "vegas")
    with pytest.raises(RegistryError, match="credit, loss, path, window"):
        find("windows", "fixed")


def test_registry__a_name_taken_twice_names_both_places() -> None:
    mine = replace(find("window", "swift"), name="mine")
    found = merged([], [Entry(mine, "here"), Entry(mine, "there"), Entry(mine, "yonder")])
    assert not found.entries
    (problem,) = found.problems
    assert "3 window policies are named 'mine', from here and there and yonder" in problem.text
    assert "uninstall all but one" in problem.text
    assert found.problems_of("window", "mine") == found.problems_of("", "mine") == [problem]
    assert not found.problems_of("path", "mine")
    other = Entry(replace(mine, name="other"), "there")
    assert len(merged([], [Entry(mine, "here"), other]).entries) == 2


def test_registry__a_shipped_name_stays_the_shipped_policy() -> None:
    swift = find("window", "swift")
    found = merged([Entry(swift, "weft")], [Entry(swift, "theirs")])
    assert found.entries["window", "swift"].origin == "weft"
    (problem,) = found.problems
    assert problem.hidden
    assert "is weft's own (weft), not that of theirs: rename or uninstall" in problem.text


def test_registry__a_module_without_a_policy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SHIPPED", ("congestion.api",))
    with pytest.raises(RegistryError, match=r"congestion\.api:POLICY"):
        policies()
    monkeypatch.setattr(registry, "SHIPPED", ("congestion.absent",))
    with pytest.raises(RegistryError, match=r"congestion\.absent"):
        policies()


@pytest.mark.parametrize("raised", ["KeyError('x')", "SystemExit(3)", "SyntaxError('y')"])
def test_registry__whatever_a_package_raises_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    (tmp_path / "weft_raises.py").write_text(f"raise {raised}\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("vegas", "weft_raises:POLICY", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    with pytest.raises(RegistryError, match=r"'vegas' of .*weft_raises:POLICY cannot .*uninstall"):
        find("window", "vegas")
    assert find("window", "swift").name == "swift"
    assert ("window", "vegas") not in policies()


@pytest.mark.parametrize("name", ["", "Swift", "a b", "x/y", "9", "x" * 48])
def test_declare__names(name: str) -> None:
    with pytest.raises(ValueError, match="policy name"):
        window_policy(name, **HOOKS)


def test_declare__records() -> None:
    with pytest.raises(ValueError, match="starts at zero: set it in on_start"):
        window_policy("x", flow=record(a=3), **HOOKS)
    with pytest.raises(ValueError, match="written by the core"):
        path_policy("x", path=record(rtt_ns=int), pick=pick, on_feedback=pick)
    with pytest.raises(TypeError, match="give int, float, a number"):
        record(a="text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give int, float, a number"):
        record(a=True)
    with pytest.raises(ValueError, match="at most 4096"):
        record(a=(0,) * 513)
    assert record(a=int, b=(1.0, 2.0)).size_bytes == 24


def test_declare__hooks() -> None:
    with pytest.raises(TypeError, match=r"pick must take \(flow, paths, params, event, result\)"):
        path_policy("x", pick=hook, on_feedback=hook)
    with pytest.raises(TypeError, match="not a plain function"):
        window_policy("x", **(HOOKS | {"on_ack": max}))
