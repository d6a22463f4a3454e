"""Finds what `make` builds for tests and benchmarks, which is no part of weft's installation."""

from __future__ import annotations

import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import click

ROOT = Path(__file__).resolve().parents[2]
# The build folder, chosen as in the Makefile and in setup.py.
TREE = Path(os.environ.get("CMAKE_BINARY_DIR") or ROOT / "build" / "release").resolve()


@cache
def extension(name: str, rule: str) -> ModuleType:
    """Loads an extension module from the build tree; `rule` is the call of make that builds it."""
    file = TREE / f"{name}{EXTENSION_SUFFIXES[0]}"
    if not file.exists():
        raise click.ClickException(f"{file} is not built: run {rule}")
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
