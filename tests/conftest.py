"""Options that every test of the tree may ask for."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--build-tree",
        default=str(ROOT / "build" / "release"),
        help="CMake's build tree, for tests of native programs",
    )
