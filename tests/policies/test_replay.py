"""Decides that `weft policy replay` shows recorded decisions beside those of other policies.

Never opens a socket: the recording is made of events that the test writes.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

pytest.importorskip("numba")
import itertools

from click.testing import CliRunner

from congestion.registry import find
from transport.cli.policy import policy_group
from transport.compiler.interpret import Interpreted
from transport.recording import MAGIC

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_policy.py"
SEGMENT = 9_000


def entry(kind: int, hook: int, owner: int, body: bytes, family: int = 1) -> bytes:
    return struct.pack("<IBBBBIHH", 16 + len(body), kind, family, hook, 0, owner, 0, 1) + body


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`fixed` over 300 acknowledgments and a loss in the middle, of two flows."""
    policy = find("window", "fixed")
    runner = Interpreted(policy)
    params = policy.params.filled()
    event, result = policy.family.event.zeros(), policy.family.result.zeros()
    head = struct.pack("<IIII", event.nbytes, result.nbytes, params.nbytes, 0)
    names = policy.name.encode().ljust(48, b"\0") + b"0".ljust(72, b"\0")
    image = MAGIC + entry(1, 0, 0, head + names + params.tobytes())
    for step in range(300):
        hook = 0 if step < 2 else 2 if step == 150 else 1
        event["now_ns"] = 10**9 + step * 50_000
        event["kind"] = hook - 1
        event["segment_bytes"] = SEGMENT
        event["rtt_ns"] = event["srtt_ns"] = event["rtt_min_ns"] = 100_000
        event["acked_bytes"], event["acked_segments"] = 8 * SEGMENT, 8
        event["lost_bytes"] = SEGMENT * 40 if hook == 2 else 0
        event["window_bytes"], event["window_bytes_max"] = 1 << 22, 1 << 24
        name = policy.family.hooks[hook]
        records = {"flow": policy.flow.zeros(), "shared": None, "params": params}
        assert runner.call(name, event=event, result=result, **records) == 0
        image += entry(2, hook, step % 2, event.tobytes() + result.tobytes())
    image += entry(3, 0, 0, (17).to_bytes(8, "little"), family=0)
    path = tmp_path_factory.mktemp("replay") / "run.weftrec"
    path.write_bytes(image)
    return path


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(policy_group, ["replay", *arguments])
    return done.exit_code, done.output


def test_replay__table_of_recorded_and_tried(recording: Path) -> None:
    status, text = run(str(recording), "--policy", "fixed", "--policy", str(EXAMPLE))
    assert status == 0, text
    assert "fixed (recorded)" in text
    rows = [line.split() for line in text.splitlines()]
    assert next(row[:4] for row in rows if row[:2] == ["fixed", "300"]) == [
        "fixed",
        "300",
        "0.0%",
        "0",
    ]
    assert any(row[:3] == ["mine", "300", "100.0%"] for row in rows)
    assert "mine window: " in text
    assert "17 decisions found no room" in text
    assert "another version of" in text  # the recording's digest of fixed is made up


def test_replay__json_holds_every_answer(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    status, text = run(str(recording), "--policy", str(EXAMPLE), "--owner", "1", "--json", str(out))
    assert status == 0, text
    document = json.loads(out.read_text())
    assert document["lost_decisions"] == 17
    recorded, mine = document["policies"]
    assert [recorded["name"], mine["name"]] == ["fixed (recorded)", "mine"]
    assert len(mine["answers"]) == len(mine["now_ns"]) == 150
    assert set(mine["owner"]) == {1}
    # From an eighth of the greatest window; owner 0 has the loss.
    assert mine["answers"][0][0] == (1 << 24) / 8
    windows = [answer[0] for answer in mine["answers"]]
    assert all(after > before for before, after in itertools.pairwise(windows))
    _, text = run(str(recording), "--policy", str(EXAMPLE), "--owner", "0", "--json", "-")
    cut = json.loads(text[text.index("{") :])["policies"][1]
    at = cut["hook"].index("on_loss")
    assert cut["answers"][at][0] == pytest.approx(cut["answers"][at - 1][0] / 2)


def test_replay__a_plot_is_written_or_says_what_it_needs(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "windows.svg"
    status, text = run(str(recording), "--policy", "swift", "--plot", str(out))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert status == 2
        assert "pip install 'weft[plots]'" in text
    else:
        assert status == 0, text
        assert b"<svg" in out.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--policy", "teleport"], 2, "no policy 'teleport'"),
        (["--policy", "rack", "--family", "window"], 2, "no window policy 'rack'"),
        (["--family", "loss"], 1, "no loss decisions; there are window (fixed)"),
        (["--owner", "9"], 2, "no decisions of 9; there are those of 0, 1"),
        (["--policy", "absent.py"], 2, "no such file"),
        (["--family", "path", "--policy", str(EXAMPLE)], 1, "no path decisions"),
    ],
)
def test_replay__wrong_usage_says_what_there_is(
    recording: Path, arguments: list[str], status: int, says: str
) -> None:
    code, text = run(str(recording), *arguments)
    assert (code, says in text) == (status, True), text


def test_replay__another_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "x"
    other.write_text("hello")
    code, text = run(str(other))
    assert code == 1
    assert "not a recording" in text
