"""Tests that `weft policy replay` shows recorded decisions beside those of other policies.

The recording consists of events written by the test.
"""

from __future__ import annotations

import json
import math
import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")
import itertools

from click.testing import CliRunner

from congestion.registry import find
from transport.cli import replay_plot
from transport.cli.lookup import parameters
from transport.cli.policy import policy_group
from transport.cli.replay import sparkline
from transport.compiler.interpret import Interpreted
from transport.policies.recording import MAGIC, RecordingError, parse, read
from transport.policies.replay import Replay, Track

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_policy.py"
SEGMENT = 9_000


def entry(kind: int, hook: int, owner: int, body: bytes, family: int = 1) -> bytes:
    return struct.pack("<IBBBBIHH", 16 + len(body), kind, family, hook, 0, owner, 0, 1) + body


def declared(name: str) -> bytes:
    """The recording's entry that declares the policy of the decisions after it."""
    policy = find("window", "fixed")
    params = policy.params.filled()
    sizes = (policy.family.event.size_bytes, policy.family.result.size_bytes, params.nbytes, 0)
    names = name.encode().ljust(48, b"\0") + b"0".ljust(72, b"\0")
    return entry(1, 0, 0, struct.pack("<IIII", *sizes) + names + params.tobytes())


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a recording of policy `fixed` for two flows: 300 acknowledgments and one loss."""
    policy = find("window", "fixed")
    runner = Interpreted(policy)
    params = policy.params.filled()
    event, result = policy.family.event.zeros(), policy.family.result.zeros()
    image = MAGIC + declared(policy.name)
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
    rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    assert next(row[:4] for row in rows if row[:2] == ["fixed", "300"]) == [
        "fixed",
        "300",
        "0 %",
        "0",
    ]
    assert any(row[:3] == ["mine", "300", "100.0 %"] for row in rows)
    assert "mine window: " in text
    assert "17 decisions were dropped" in text
    assert "another version of" in text  # the recorded digest of `fixed` is a fake


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
    # The replayed policy starts at an eighth of the largest window; only owner 0 has a loss.
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


def test_binned__many_decisions_keep_their_range_and_gaps() -> None:
    at_ms = np.arange(6_000.0)
    values = np.where(at_ms < 3_000, at_ms % 10, np.nan)
    begins, least, mean, most = replay_plot.binned(at_ms, values)
    assert begins.size == least.size == mean.size == most.size == replay_plot.BINS
    known = begins < 2_990
    assert (least[known] < mean[known]).all()
    assert (mean[known] < most[known]).all()
    assert np.isnan(mean[begins > 3_010]).all()


def test_plot__draws_steps_of_each_flow_and_marks_its_losses() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    track = Track("a$b", "window")
    for step in range(40):
        track.now_ns.append(step * 10**6)
        track.owners.append(step % 2)
        track.hooks.append("on_loss" if step == 20 else "on_ack")
        track.answers.append((1000.0 + step, 0.0))
    windows, rates = replay_plot.values_figure(pyplot, [track]).axes
    lines = [one for one in windows.lines if one.get_drawstyle() == "steps-post"]
    assert [one.get_label() for one in lines] == [r"a\$b, flow 0", r"a\$b, flow 1"]
    assert lines[0].get_ydata().tolist() == [1000.0 + step for step in range(0, 40, 2)]
    (mark,) = (one for one in windows.lines if one.get_marker() == "v")
    assert (mark.get_xdata().tolist(), mark.get_ydata().tolist()) == ([20.0], [1020.0])
    assert not rates.lines  # the flows are not paced
    assert rates.texts[0].get_text() == "no policy answered a pacing rate"
    pyplot.close("all")


@pytest.mark.parametrize("count", [40, 4_000])
def test_plot__shows_which_paths_were_chosen(count: int) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    track = Track("reps", "path")
    for step in range(count):
        track.now_ns.append(step * 10**6)
        track.owners.append(0)
        track.hooks.append("pick")
        track.answers.append((float(step % 4),))
    chosen, shares, *_ = replay_plot.paths_figure(pyplot, [track]).axes
    assert bool(chosen.lines) == (count == 40)
    assert [bar.get_height() for bar in shares.patches] == [25.0] * 4
    pyplot.close("all")


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--policy", "teleport"], 2, "no policy or file named 'teleport'"),
        (["--policy", "rack", "--family", "window"], 2, "no window policy or file named 'rack'"),
        (["--family", "loss"], 1, "no loss decisions; recorded policies: window (fixed)"),
        (["--owner", "9"], 2, "--owner 9 has no decisions in this recording; choose one of 0, 1"),
        (["--policy", "absent.py"], 2, "no such file"),
        (["--policy", "loss/rack", "--family", "window"], 2, "loss/rack is a loss policy"),
        (["--policy", "swift:speed=1"], 2, "no parameter 'speed': choose one of target_queue_ns"),
        (["--policy", "swift:decrease_max=inf"], 2, "decrease_max=inf: not a finite number"),
        (["--policy", "fixed:window_bytes=1/2"], 2, "window_bytes=2: too many values: at most 1"),
        (["--policy", "fixed:window_bytes=0.5"], 2, "window_bytes=0.5: not a whole number"),
        (
            ["--owner", "1:2"],
            2,
            "--owner 1:2 has no decisions in this recording; choose one of 0, 1",
        ),
        (["--owner", "x"], 2, "'x' is neither a number nor ENGINE:INDEX"),
        (["--plot", "/absent/x.svg"], 2, "cannot write /absent/x.svg"),
        (["--family", "path", "--policy", str(EXAMPLE)], 2, "is a window policy; give a path"),
        (["--policy", "path/reps", "--policy", "window/swift"], 2, "window/swift is a window"),
        (["--policy", "fixed:window_bytes=1_0"], 2, "window_bytes=1_0: not a whole number"),
        (["--policy", "fixed:window_bytes=1180591620717411303424"], 2, "too large for 64 bits"),
        (["--policy", "swift:decrease_max=+0.1"], 2, "decrease_max=+0.1: not a finite number"),
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
    assert "weft policy try --record write one" in " ".join(text.split())


def test_replay__wrong_usage_is_found_before_anything_is_read(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "transport.cli.replay.read", lambda *a: pytest.fail("a file was read despite wrong usage")
    )
    code, text = run(str(recording), "--policy", "window/swift", "--policy", "path/reps")
    assert (code, "path/reps is a path policy" in text) == (2, True)


def test_replay__what_came_before_damage_is_shown_and_the_status_is_1(
    recording: Path, tmp_path: Path
) -> None:
    image = bytearray(recording.read_bytes())
    image[40_000:40_600] = b"\xff" * 600  # more than one entry
    broken = tmp_path / "broken"
    broken.write_bytes(image)
    code, text = run(str(broken), "--policy", "fixed")
    assert code == 1
    assert "fixed (recorded)" in text
    assert "damaged at byte" in text
    assert "copy the file again, or record again" in text
    out = tmp_path / "out.json"
    assert run(str(broken), "--json", str(out))[0] == 1
    document = json.loads(out.read_text())
    assert "damaged at byte" in document["damage"]
    assert 0 < len(document["policies"][0]["answers"]) < 300


def of_windows(path: Path, *windows: float) -> Path:
    """Writes a recording with the given answers, of which another policy made the second half."""
    family = find("window", "fixed").family
    event, result = family.event.zeros(), family.result.zeros()
    image = MAGIC + declared("fixed")
    for step, window in enumerate(windows):
        if step == len(windows) // 2:
            image += declared("other")
        event["now_ns"], event["kind"] = 10**9 + step * 50_000, 0
        event["segment_bytes"], event["window_bytes_max"] = SEGMENT, 1 << 24
        result["window_bytes"] = window
        image += entry(2, 1, 0, event.tobytes() + result.tobytes())
    path.write_bytes(image)
    return path


def test_replay__only_finite_answers_are_drawn_and_the_others_counted(tmp_path: Path) -> None:
    finite = [float(1 << 20)] * 60
    path = of_windows(tmp_path / "a", *finite, math.inf, math.nan, *finite)
    status, text = run(str(path), "--policy", "swift")
    assert status == 0, text
    assert "2 of 122 answers are not finite" in text
    assert "fixed, other (recorded)" in text
    status, text = run(str(path), "--json", "-")
    document = json.loads(text, parse_constant=pytest.fail)["policies"][0]
    assert document["not_finite"] == 2
    assert document["answers"][60][0] is None
    assert document["figures"]["window_bytes_max"] == 1 << 20
    status, text = run(str(of_windows(tmp_path / "b", math.nan, -math.inf)), "--policy", "swift")
    assert status == 0, text
    assert "2 of 2 answers are not finite" in text


def test_sparkline__a_part_without_a_finite_value_is_blank() -> None:
    nan = math.nan
    assert sparkline(np.array([1.0, nan, 2.0, math.inf, 3.0])) == "▁ ▄ █"
    assert sparkline(np.array([nan, nan])) == "  "
    assert sparkline(np.array([nan, 1.0, 2.0, nan]), 2) == "▁█"
    assert sparkline(np.array([1e308, 1e308, -1e308]), 1) == "▁"
    assert sparkline(np.array([])) == ""


def test_replay__a_family_a_parameter_and_an_engine_can_be_named(recording: Path) -> None:
    words = ("--policy", "window/fixed:window_bytes=65536", "--owner", "0:1", "--json", "-")
    status, text = run(str(recording), *words)
    assert status == 0, text
    tried = json.loads(text[text.index("{") :])["policies"][1]
    assert tried["name"] == "fixed:window_bytes=65536"
    assert set(tried["owner"]) == {1}
    assert {answer[0] for answer in tried["answers"]} == {65536.0}


def test_parameters__arrays_keep_what_is_not_given() -> None:
    policy = find("path", "weighted")
    name = next(one for one, start in policy.params.defaults.items() if isinstance(start, tuple))
    start = policy.params.defaults[name]
    assert parameters(policy, f"{name}=3/0")[name] == [3, 0, *start[2:]]


def test_replay__a_policy_that_cannot_be_loaded_has_failed(recording: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("1 / 0\n")
    status, text = run(str(recording), "--policy", str(wrong))
    assert (status, "ZeroDivisionError" in text) == (1, True)


def test_replay__matplotlib_is_missed_before_anything_runs(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(
        "transport.cli.replay.read",
        lambda *a: pytest.fail("the recording was read although matplotlib is missing"),
    )
    status, text = run(str(recording), "--plot", str(tmp_path / "x.svg"))
    assert status == 1
    assert text.endswith("needs the package matplotlib: pip install 'weft[plots]'\n")


def shorter(image: bytes, event_bytes: int, result_bytes: int) -> bytes:
    """A recording as a version without the last fields of events and results wrote it."""
    whole = find("window", "fixed").family
    made, at = MAGIC, len(MAGIC)
    while at < len(image):
        size, kind = struct.unpack_from("<IB", image, at)
        head, body = image[at + 4 : at + 16], image[at + 16 : at + size]
        if kind == 1:
            body = struct.pack("<II", event_bytes, result_bytes) + body[8:]
        else:
            cut = whole.event.size_bytes
            body = body[:event_bytes] + body[cut : cut + result_bytes]
        made += struct.pack("<I", 16 + len(body)) + head + body
        at += size
    return made


def test_replay__a_recording_from_before_a_field_was_added(recording: Path) -> None:
    image = recording.read_bytes()
    whole, old = read(recording), parse(shorter(image, 168, 16))
    assert (old.damage, old.cut, len(old.steps)) == ("", False, len(whole.steps))
    for before, after in zip(old.steps, whole.steps, strict=True):
        assert before.event["now_ns"] == after.event["now_ns"]
        assert before.result["window_bytes"] == after.result["window_bytes"]
        assert before.event["message_bytes"] == 0 == before.result["window_segments_min"]
    runner = Interpreted(find("window", "fixed"))
    assert Replay(find("window", "fixed"), runner).run(old.of("window")) is not None


@pytest.mark.parametrize("sizes", [(0, 16), (170, 16), (168, 0), (1 << 20, 16), (168, 20)])
def test_replay__records_of_another_shape_are_refused(
    recording: Path, sizes: tuple[int, int]
) -> None:
    with pytest.raises(RecordingError, match="another version"):
        parse(shorter(recording.read_bytes(), *sizes))
