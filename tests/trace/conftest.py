"""Fixtures of the tests of traces."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def build_tree(request: pytest.FixtureRequest) -> Path:
    return Path(request.config.getoption("--build-tree")).resolve()
