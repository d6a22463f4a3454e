"""Tests WEFT_LOCAL=parent and any where Yama forbids to read a sibling's memory.

Yama is a fake (fake_yama.c): few hosts of tests have the real one, and only root can set it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.support import Log, running
from tests.local import hostile
from tests.local.support import RING_BYTES, agree, is_local, served
from transport import Endpoint

SOURCE = Path(__file__).with_name("fake_yama.c")
SIZES = [0, 100, 3 << 20]


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, str]:
    """The environment of a process under the fake."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library, permits = tmp_path / "fake_yama.so", tmp_path / "permits"
    permits.mkdir()
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", "-O1"]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE)], check=True)
    return {"LD_PRELOAD": str(library), "FAKE_YAMA": str(permits)}


def dial(handle: str) -> None:
    """Exchanges messages with a peer, and prints how many were lent to it, and whether it lends."""
    with Endpoint() as endpoint, endpoint.connect(bytes.fromhex(handle)) as connection:
        agree(connection, SIZES, [RING_BYTES + 1, 7])
        assert is_local(connection)
        memory = hostile.Memory()
        copies = [
            memory.word(hostile.SIDES + side * hostile.SIDE_BYTES + hostile.COPIES).value % 2
            for side in range(2)
        ]
        print(*copies, flush=True)


def copies_of(handle: bytes, mode: str, fake: dict[str, str]) -> tuple[list[int], str]:
    """Whether a dialler and its listener can copy out of each other, and the dialler's log."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.local.test_yama", handle.hex()],
        env=os.environ
        | fake
        | {"WEFT_LOCAL": mode, "WEFT_INTERFACES": "lo", "WEFT_LOG_LEVEL": "info"},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running(process):
        said, errors = process.communicate()
    assert process.returncode == 0, errors
    return [int(word) for word in said.split()], errors


ALL = ("auto", "parent", "any")


@pytest.mark.parametrize("there", ALL)
@pytest.mark.parametrize("here", ALL)
def test_yama__each_end_permits_copies_of_its_own_memory(
    here: str, there: str, fake: dict[str, str]
) -> None:
    """Both processes have this one as their parent."""
    with served("exchanges", mode=there, WEFT_LOG_LEVEL="info", **fake) as (peer, handle):
        copies, errors = copies_of(handle, here, fake)
        assert copies == [there != "auto", here != "auto"]
        assert ("WEFT_LOCAL=parent or any in that process" in errors) == (there == "auto")
        if here == "auto":
            said = Log(peer).take("does not let this one read its memory")
            assert "Operation not permitted" in said
            assert "its long messages pass through the ring" in said


@pytest.mark.parametrize("mode", ["parent", "any"])
def test_yama__a_process_of_another_parent_needs_any(mode: str, fake: dict[str, str]) -> None:
    """The listener's parent is one that this process started; the dialler's is this one."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1)")
    launcher = ("unshare", "--fork", "--kill-child", "--")  # into no namespace
    with served("exchanges", mode=mode, launcher=launcher, **fake) as (_, handle):
        copies, _ = copies_of(handle, "any", fake)
        assert copies == [mode == "any", True]


def test_yama__nothing_is_permitted_by_itself(fake: dict[str, str]) -> None:
    for mode in ("auto", "ring", "off"):
        with served("exchanges", mode=mode, **fake):
            assert os.listdir(fake["FAKE_YAMA"]) == []


if __name__ == "__main__":
    dial(sys.argv[1])
