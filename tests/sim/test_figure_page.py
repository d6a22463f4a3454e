"""Tests that docs/FIGURE.md works for a reader: writes each of its files, runs each command."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.support import needs_fabric
from tests.waiting import PATIENCE_S
from transport.sim import load, run

for name in ("numba", "duckdb", "matplotlib"):
    pytest.importorskip(name)

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "FIGURE.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
TO_FILE = re.compile(r"Write it to `([\w.]+)`")
COMMANDS = {"weft": "-m transport", "python": ""}

pytestmark = needs_fabric


def steps() -> Iterator[tuple[str, str]]:
    """The page's blocks in order: (file to write, content), or ("", commands)."""
    text, end = PAGE.read_text(), 0
    for found in BLOCK.finditer(text):
        named = TO_FILE.findall(text[end : found.start()])
        end = found.end()
        assert bool(named) == bool(found[1]), f"no file, or a command with a language: {found[0]}"
        yield named[-1] if named else "", found[2]


def environment(folder: Path) -> dict[str, str]:
    """Variables with which a shell finds the weft and the Python of this test."""
    folder.mkdir()
    for name, more in COMMANDS.items():
        file = folder / name
        file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {more} "$@"\n')
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    path = f"{folder}:{os.environ.get('PATH', '/usr/bin:/bin')}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


def test_figure_page__every_file_and_command_works(tmp_path: Path) -> None:
    given, here = environment(tmp_path / "bin"), tmp_path / "here"
    here.mkdir()
    commands = 0
    for file, content in steps():
        if file:
            (here / file).write_text(content)
            continue
        for command in content.splitlines():
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=here,
                env=given,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            commands += 1
    assert commands == 7
    assert "<svg" in (here / "slowdown.svg").read_text()
    rows = list(csv.DictReader(io.StringIO((here / "origin.csv").read_text())))
    assert len(rows) == 15
    assert [row["good"] for row in rows] == ["True"] * 15
    digests = {
        name: hashlib.sha256((here / name).read_bytes()).hexdigest()
        for name in ("fabric.toml", "mine.py")
    }
    assert {row["scenario_sha256"] for row in rows} == {digests["fabric.toml"]}
    mine = [row for row in rows if row["window_policy"] == "mine.py"]
    assert [row["window_sha256"] for row in mine] == [digests["mine.py"]] * 5
    alone = run(load(here / "fabric.toml"), {"window": str(here / "mine.py")}, seed=2)
    assert alone.fingerprint == mine[1]["fingerprint"], "a result is that of its sources"
