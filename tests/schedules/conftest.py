"""The fixture for the built schedule runner."""

from pathlib import Path

import pytest

from . import Runner


@pytest.fixture(scope="session")
def runner(pytestconfig: pytest.Config) -> Runner:
    program = Path(pytestconfig.getoption("--build-tree")) / "weft_schedules"
    assert program.exists(), f"{program} is not built: run make test-native"
    return Runner(program, program.parent / "policies")
