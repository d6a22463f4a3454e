"""Tests on which CPUs engine threads run."""

import os
import re
from contextlib import suppress
from pathlib import Path

import pytest

from tests.api.support import LOCAL, PATIENCE_S, content
from transport import Endpoint, KnobError
from transport.errors import InvalidArgumentError, WeftError


def allowed(thread: Path) -> set[int]:
    """The CPUs in the thread's affinity mask."""
    return os.sched_getaffinity(int(thread.name))


def engine_threads() -> set[Path]:
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread of another test has ended
            if (thread / "comm").read_text().startswith("weft-engine"):
                found.add(thread)
    return found


@pytest.fixture
def others() -> set[Path]:
    """Engine threads of endpoints of earlier tests, which may be closed later."""
    return engine_threads()


@pytest.mark.parametrize("wish", ["auto", "any"])
def test_engine_cpus__all_of_the_process_without_a_nic(wish: str, others: set[Path]) -> None:
    with Endpoint(**LOCAL | {"engine_cpus": wish}):
        threads = engine_threads() - others
        assert threads
        assert all(allowed(thread) == os.sched_getaffinity(0) for thread in threads)


def test_engine_cpus__a_list_holds_for_engines_alone(others: set[Path]) -> None:
    ours = os.sched_getaffinity(0)
    last = max(ours)
    wish = f"{last},1023"  # CPUs that this thread may not use are left out
    with Endpoint(**LOCAL | {"engine_cpus": wish}) as endpoint, endpoint.listen() as listener:
        threads = engine_threads() - others
        assert threads
        assert all(allowed(thread) == {last} for thread in threads)
        assert os.sched_getaffinity(0) == ours
        here = endpoint.connect(listener.handle)
        there = listener.accept(timeout_s=PATIENCE_S)
        data = content(100_000, 1)
        handle = here.isend(data)
        assert there.recv(100_000, timeout_s=PATIENCE_S) == data
        handle.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("wish", "says", "error"),
    [
        (
            "1023",
            "WEFT_ENGINE_CPUS=1023: the calling thread may use none of these CPUs, only [0-9,-]+$",
            InvalidArgumentError,
        ),
        (
            "0-",
            "WEFT_ENGINE_CPUS=0-: '0-' is no CPU number below 1024 and no rising range",
            KnobError,
        ),
        ("1-0", "WEFT_ENGINE_CPUS=1-0: '1-0' is no CPU number below 1024", KnobError),
        ("near", "WEFT_ENGINE_CPUS=near: 'near' is no CPU number", KnobError),
        ("", "WEFT_ENGINE_CPUS=: it names no CPU", KnobError),
    ],
)
def test_engine_cpus__a_wrong_list_is_refused(wish: str, says: str, error: type[WeftError]) -> None:
    with pytest.raises(error) as raised:
        Endpoint(**LOCAL | {"engine_cpus": wish})
    assert re.search(says, str(raised.value))
