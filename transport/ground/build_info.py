"""The version of weft and the commit of its checkout, which are stored with results."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version as installed_version
from pathlib import Path

from transport.ground import toml

ROOT = Path(__file__).resolve().parents[2]


@cache
def version() -> str:
    """The version of the installed package, or of the source checkout that runs uninstalled."""
    try:
        return installed_version("weft")
    except PackageNotFoundError:
        project = toml.read(ROOT / "pyproject.toml")["project"]
        return str(project["version"])


@cache
def commit() -> str | None:
    """The commit of the checkout, with + if files are modified; None for an installed package.

    It is read once per process, because later edits do not affect the running code.
    """
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        return None
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def build_info() -> dict[str, str | None]:
    """Version and commit as a JSON object."""
    return {"weft": version(), "commit": commit()}


def build_text() -> str:
    """Version and commit as text: "weft 0.2.0, commit 1f2e3d4c5b6a"."""
    known = commit()
    return f"weft {version()}" + (f", commit {known}" if known else "")
