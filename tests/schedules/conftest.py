"""Where the schedule runner is, and how its one line is read."""

from pathlib import Path

import pytest

from . import Runner


@pytest.fixture(scope="session")
def runner(pytestconfig: pytest.Config) -> Runner:
    program = Path(pytestconfig.getoption("--build-tree")) / "weft_schedules"
    assert program.exists(), f"{program} is not built: make test-native builds it"
    return Runner(program, program.parent / "policies")
