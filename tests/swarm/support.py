"""Helpers of the swarm tests: they run a swarm on a chosen extension module."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.swarm.door import VARIABLE
from transport import native

ROOT = Path(__file__).resolve().parents[2]


def fabric_is_built() -> bool:
    if VARIABLE in os.environ:
        return True
    try:
        return hasattr(native.load(), "Fabric")
    except native.NativeMissingError:
        return False


needs_fabric = pytest.mark.skipif(
    not fabric_is_built(), reason="the extension is not built, or has no fabric: make build"
)


@dataclass(frozen=True)
class Done:
    """The exit status and output of a finished command."""

    status: int
    said: str
    findings: list[dict[str, Any]]
    looked: int


def weft(*arguments: str, module: Path | None = None, timeout_s: float = 170) -> Any:
    """Runs `weft ARGUMENTS` or a swarm (door.py), with another extension if `module` is given."""
    environment = dict(os.environ)
    if module is not None:
        environment[VARIABLE] = str(module)
    return subprocess.run(
        [sys.executable, "-m", "tests.swarm.door", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def swarm(folder: Path, *arguments: str, module: Path | None = None) -> Done:
    """Runs a swarm, which writes its findings to `folder`."""
    file = folder / "swarm.json"
    folder.mkdir(parents=True, exist_ok=True)
    done = weft("swarm", "--out", str(folder), "--json", str(file), *arguments, module=module)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(file.read_text())
    return Done(done.returncode, done.stdout + done.stderr, found["findings"], found["looked"])


def replay(command: str, module: Path | None = None) -> Any:
    """Runs the command that replays a finding."""
    words = shlex.split(command)
    assert words[0] == "weft"
    return weft(*words[1:], module=module)
