"""Tests that policies, called again as the simulator calls them, repeat recorded decisions exactly.

It also tests that one changed bit in an answer, an event or a parameter is detected.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.api.support import PATIENCE_S, content, pair
from transport.cli.replay import command
from transport.errors import InvalidArgumentError
from transport.policies.recording import MAGIC, RecordingError
from transport.policies.replay_native import replay_files, shipped

HEAD = struct.Struct("<IBBBBIHH")
POLICY, DECISION = 1, 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Recordings of both ends of a lossy transfer, with changes of window policy and parameters."""
    folder = tmp_path_factory.mktemp("recording")
    knobs = {"fault": {"loss": 0.02}, "credit_policy": "eqds", "path_policy": "reps", "paths": 8}
    with pair(**knobs, record_file=folder / "run-%p") as (here, there):
        for number in range(6):
            if number == 2:
                here.set_params("window", decrease_max=0.3)
            if number == 4:
                here.set_policy("window", "bbr")
            want, into = content(800_000, number), np.zeros(800_000, np.uint8)
            handle = there.irecv_into(into)
            here.send(want)
            handle.wait(PATIENCE_S)
            assert into.tobytes() == want
    return sorted(folder.iterdir())


def entries(image: bytes) -> list[tuple[int, tuple[int, ...]]]:
    at, found = len(MAGIC), []
    while at < len(image):
        found.append((at, HEAD.unpack_from(image, at)))
        at += found[-1][1][0]
    return found


def most_of(files: list[Path], family: int) -> Path:
    """The recording with the most decisions of a family."""

    def count(file: Path) -> int:
        return sum(head[1:3] == (DECISION, family) for _, head in entries(file.read_bytes()))

    return max(files, key=count)


def changed(file: Path, out: Path, change: Callable[[bytearray], None]) -> Path:
    image = bytearray(file.read_bytes())
    change(image)
    out.write_bytes(image)
    return out


def cli(*words: str) -> Result:
    return CliRunner().invoke(command, list(words))


def test_replay__every_decision_of_every_family_comes_out_the_same(files: list[Path]) -> None:
    found = replay_files(files)
    assert found.good, found.first_difference
    assert (found.differ, found.skipped, found.lost, found.cut) == (0, 0, 0, False)
    names = {(one.family, one.name) for one in found.policies}
    assert names == {
        *(("window", "swift"), ("window", "bbr"), ("path", "reps")),
        *(("loss", "rack"), ("credit", "eqds")),
    }
    written = sum(head[1] == DECISION for file in files for _, head in entries(file.read_bytes()))
    assert found.decisions == written > 100
    for one in found.policies:
        assert one.known
        assert sum(one.by_hook.values()) == one.decisions > 0
        assert one.by_hook["on_start"] >= 1


@pytest.mark.parametrize("family", [1, 2, 3, 4])
def test_replay__one_bit_of_an_answer_is_one_difference(
    files: list[Path], tmp_path: Path, family: int
) -> None:
    def flip(image: bytearray) -> None:
        mine = [(at, head) for at, head in entries(bytes(image)) if head[1:3] == (DECISION, family)]
        at, head = mine[len(mine) // 2]
        heads = head[6] * 24 if family == 3 else 0
        image[at + head[0] - heads - 8] ^= 1  # flip a bit in the answer's last field

    found = replay_files([changed(most_of(files, family), tmp_path / "flipped", flip)])
    assert (found.differ, found.skipped, found.good) == (1, 0, False)
    assert "word" in found.first_difference


def test_replay__a_parameter_that_was_another_makes_other_answers(
    files: list[Path], tmp_path: Path
) -> None:
    def weaken(image: bytearray) -> None:
        for at, head in entries(bytes(image)):
            if head[1:3] == (POLICY, 1):
                for word in range(at + 16 + 16 + 48 + 72, at + head[0], 8):
                    value = struct.unpack_from("<d", image, word)[0]
                    if (
                        1e-9 < value < 1e12
                    ):  # skip integers: their bits, read as a float, are less than 1e-9
                        struct.pack_into("<d", image, word, value / 2)

    assert replay_files([changed(most_of(files, 1), tmp_path / "weak", weaken)]).differ > 0


def test_replay__what_began_in_mid_life_is_skipped_and_said(
    files: list[Path], tmp_path: Path
) -> None:
    image = files[0].read_bytes()
    starts = [at for at, head in entries(image) if head[1] == DECISION and head[3] == 0]
    kept = bytearray(MAGIC)
    for at, head in entries(image):
        if at not in starts:
            kept += image[at : at + head[0]]
    (tmp_path / "late").write_bytes(kept)
    found = replay_files([tmp_path / "late"])
    assert found.skipped > 0
    assert not found.good
    done = cli(str(tmp_path / "late"), "--native")
    assert done.exit_code == 1
    assert "started before the recording" in done.output


def test_replay__what_is_cut_damaged_or_none_is_told(files: list[Path], tmp_path: Path) -> None:
    whole = files[0].read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-4])
    assert replay_files([tmp_path / "cut"]).cut
    (tmp_path / "damaged").write_bytes(whole[:8] + b"\x07" + whole[9:])
    assert replay_files([tmp_path / "damaged"]).damage == "damaged at byte 8"
    for name, text in (("other", b"something else"), ("empty", b"")):
        (tmp_path / name).write_bytes(text)
        with pytest.raises(RecordingError):
            replay_files([tmp_path / name])
    with pytest.raises(InvalidArgumentError):
        replay_files(files, [("windows", "swift")])


def test_replay__any_cut_of_a_recording_is_read_without_harm(
    files: list[Path], tmp_path: Path
) -> None:
    whole = files[0].read_bytes()[:20_000]
    chance = np.random.default_rng(1)
    for _ in range(200):
        image = bytearray(whole[: chance.integers(8, len(whole))])
        for place in chance.integers(8, len(image), 3):
            image[place] ^= int(chance.integers(1, 256))
        (tmp_path / "fuzzed").write_bytes(image)
        found = replay_files([tmp_path / "fuzzed"])
        assert found.decisions + found.skipped <= len(entries_at_most(whole))


def entries_at_most(whole: bytes) -> range:
    """One number per entry that a file of this length can hold; an entry is at least a header."""
    return range(len(whole) // HEAD.size)


def test_cli__shows_each_policy_and_ends_with_one_where_an_answer_differs(
    files: list[Path], tmp_path: Path
) -> None:
    done = cli(str(files[0]), "--native")
    assert done.exit_code == 0, done.output
    assert "0 differ" in done.output
    said = json.loads(cli(str(files[0]), "--native", "--json", "-").output)
    assert said["differ"] == 0
    assert said["decisions"] == sum(one["decisions"] for one in said["policies"])

    def flip(image: bytearray) -> None:
        last = [(at, head) for at, head in entries(bytes(image)) if head[1:3] == (DECISION, 1)][-1]
        image[last[0] + last[1][0] - 8] ^= 1

    bad = changed(files[0], tmp_path / "bad", flip)
    done = cli(str(bad), "--native")
    assert done.exit_code == 1
    assert "1 of" in done.output
    assert cli(str(files[0]), "--native", "--family", "window").exit_code == 2


def test_shipped__is_what_the_policies_directory_has() -> None:
    assert {("path", "reps"), ("credit", "eqds"), ("loss", "rack")} <= set(shipped())
