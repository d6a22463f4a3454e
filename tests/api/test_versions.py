"""Tests that the versions which the changelog promises are those of the sources."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tests.api.support import ROOT
from transport.compiler import emit
from transport.ground import build_info
from transport.plan import planfile, routes, watch
from transport.trace import layout

CHANGELOG = (ROOT / "docs" / "CHANGELOG.md").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def found(pattern: str, file: Path) -> str:
    """The text that a pattern's group matches in a file, which must have it once."""
    (match,) = re.findall(pattern, file.read_text())
    return str(match)


def row(first: str) -> str:
    """The version that a row of the table of what is stable states."""
    (match,) = re.findall(rf"^\| {re.escape(first)} \|.*\| (.*) \|$", CHANGELOG, re.MULTILINE)
    return str(match)


def test_versions__the_newest_dated_one_is_the_packages() -> None:
    version = PYPROJECT["project"]["version"]
    assert found(r"project\(weft VERSION (\S+)", ROOT / "CMakeLists.txt") == version
    dated = re.findall(r"^## (\d+\.\d+\.\d+), \d{4}-\d{2}-\d{2}$", CHANGELOG, re.MULTILINE)
    assert dated[0] == version
    order = [tuple(map(int, one.split("."))) for one in dated]
    assert order == sorted(order, reverse=True)


def test_versions__breaking_changes_come_first() -> None:
    for version in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE):
        parts = re.findall(r"^### (.*)$", version, re.MULTILINE)
        assert parts == [one for one in ("Breaking", "Added", "Changed", "Fixed") if one in parts]


def test_versions__the_table_of_what_is_stable_is_right() -> None:
    control = found(r"kControlVersion = (\d+)", ROOT / "native/control/frames.h")
    wire = found(r"kVersion = (\d+)", ROOT / "native/wire/wire.h")
    assert row("network") == f"control {control}, datagrams {wire}"
    assert row("compiled policies") == f"ABI {emit.ABI_VERSION}"
    assert row("traces") == f"layout {layout.VERSION}"
    plans = (planfile.VERSION, routes.VERSION, watch.VERSION)
    assert row("plans, routes, weights") == ", ".join(map(str, plans))
    exports = (ROOT / "native/plugin/exports.map").read_text()
    stated = []
    for name, symbol in (("net", "ncclNetPlugin"), ("profiler", "ncclProfiler")):
        numbers = sorted(int(one) for one in re.findall(rf"{symbol}_v(\d+);", exports))
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        stated.append(f"{name} v{numbers[0]} to v{numbers[-1]}")
    tuner = " and ".join(f"v{one}" for one in sorted(re.findall(r"Tuner\w+_v(\d+);", exports)))
    assert row("NCCL's interfaces") == ", ".join([*stated, f"tuner {tuner}"])


def test_build_info__is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(build_info, "installed_version", absent)
    build_info.version.cache_clear()
    try:
        assert build_info.version() == PYPROJECT["project"]["version"]
    finally:
        build_info.version.cache_clear()
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a checkout of git")
    assert done.stdout.startswith(str(build_info.commit()).rstrip("+"))
