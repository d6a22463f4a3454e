"""Finds what `make` builds for tests and benchmarks, which is no part of weft's installation."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# As in the Makefile and in setup.py.
TREE = Path(os.environ.get("CMAKE_BINARY_DIR") or ROOT / "build" / "release").resolve()
