"""Defines the command-line options and fixtures that all tests share."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from tests.environment import OVER_THE_NETWORK

ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--build-tree",
        default=os.environ.get("CMAKE_BINARY_DIR", str(ROOT / "build" / "release")),
        help="CMake's build tree, for tests of native programs",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Also for programs that tests start (bench/lib/built.py).
    os.environ["CMAKE_BINARY_DIR"] = str(Path(config.getoption("--build-tree")).resolve())
    for name, value in OVER_THE_NETWORK.items():
        os.environ.setdefault(name, value)
    # readline, which pytest imports, sets the width of a terminal for all children, but not in
    # os.environ; commands that tests start would take it as that of their tables.
    with suppress(ImportError):
        import readline  # noqa: F401
    for name in ("COLUMNS", "LINES"):
        os.unsetenv(name)
    # Hypothesis measures the time of each example by default; a busy machine exceeds its limit.
    settings.register_profile("weft", deadline=None)
    settings.load_profile("weft")
    # Restore SIGINT: background processes ignore it, and children of the tests would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sets a temporary policy cache, so that tests evict nothing from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_priority() -> Iterator[None]:
    """Keeps the tests' priority: a command that lowers its own would slow down all later tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "nice", lambda increment: 0)
        yield
