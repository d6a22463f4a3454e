"""Fixtures for tests of the plugin: they run the host program, which stands for NCCL."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.environment import clean_environment

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 180
Play = Callable[..., subprocess.CompletedProcess[str]]
# The tests of these interface versions are long; those of the oldest and the newest are not.
BETWEEN = (7, 8, 9, 10, 11)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and isinstance(item, pytest.Function):
            values = item.callspec.params if hasattr(item, "callspec") else {}
            if values.get("version") in BETWEEN:
                item.add_marker(pytest.mark.long)


def built(file: Path) -> Path:
    """The path of a built file; fails the test if make test-native has not built it."""
    if not file.exists():
        pytest.fail(f"{file} is not built: run make test-native")
    return file


@pytest.fixture(scope="session")
def build_tree(request: pytest.FixtureRequest) -> Path:
    return Path(request.config.getoption("--build-tree")).resolve()


@pytest.fixture(scope="session")
def plugin(build_tree: Path) -> Path:
    return built(build_tree / "libnccl-net-weft.so")


@pytest.fixture(scope="session")
def fake_plugin(build_tree: Path) -> Path:
    return built(build_tree / "libnccl-net-weft-fake.so")


@pytest.fixture(scope="session")
def play(build_tree: Path) -> Play:
    """Runs one scenario of the host program; a failure shows its output."""

    def run(
        library: Path, version: int, processes: int, scenario: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        host = built(build_tree / "weft_plugin_host")
        clean = clean_environment()
        defaults = {"WEFT_INTERFACES": "lo", "WEFT_ENGINES": "1"}
        done = subprocess.run(
            [str(host), str(library), str(version), str(processes), scenario],
            env=clean | defaults | variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{scenario} v{version}: {done.returncode}\n{done.stderr}"
        return done

    return run
