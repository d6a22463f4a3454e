"""Tests that code that cannot be shown to be safe is refused, with line, reason and remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("numba")

from congestion.api import Policy
from transport.compiler import Interpreted, PolicyError, compile_policy
from transport.compiler.library import Library, jit
from transport.compiler.source import load

HEAD = '''"""A policy under test."""
import math
import random
import time
from congestion.api import record, window_policy, path_policy
Flow = record(window_bytes=float, cuts=int, seen=(0, 0, 0, 0))
Params = record(gain=0.5)
TABLE = [1, 2, 3]
LIMIT = 4
def again(x):
    return again(x - 1)
def ping(x):
    return pong(x)
def pong(x):
    return ping(x)
def shrink(e):
    e.now_ns = 0
def half(x):
    return x / 2
def hold(flow, params, event, result):
    result.window_bytes = 1.0
    result.pacing_bytes_per_s = 0.0
def on_ack(flow, params, event, result):
'''
TAIL = """
POLICY = window_policy("tried", flow=Flow, params=Params,
                       on_start=hold, on_ack=on_ack, on_loss=hold, on_timeout=hold)
"""
FIRST = HEAD.count("\n") + 1


def write(folder: Path, body: str) -> Path:
    path = folder / "tried.py"
    path.write_text(HEAD + "".join(f"    {line}\n" for line in body.splitlines()) + TAIL)
    return path


def refusal(folder: Path, body: str) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        compile_policy(write(folder, body), folder / "out.so")
    assert not (folder / "out.so").exists()
    return caught.value


@pytest.mark.parametrize(
    ("body", "line", "reason"),
    [
        ("x = 1\nwhile x:\n    x = 0", 2, "while has no bound"),
        ("x = again(1)", None, "calls itself"),
        ("x = ping(1)", None, "calls itself"),
        ("for i in range(event.path):\n    pass", 1, "range is not constant"),
        ("n = 4\nfor i in range(n):\n    pass", 2, "range is not constant"),
        ("for i in TABLE:\n    pass", 1, "a loop must iterate over a range"),
        (
            "for i in range(1000):\n    for j in range(1000):\n        pass",
            2,
            "up to 1000000 steps",
        ),
        ("for i in range(1, 9, 0):\n    pass", 1, "range is not constant"),
        ("try:\n    pass\nexcept ValueError:\n    pass", 1, "exceptions cannot be caught"),
        ("with flow:\n    pass", 1, "with is not supported"),
        ("import os", 1, "import inside a hook"),
        ("global LIMIT\nLIMIT = 3", 1, "a global cannot be written"),
        ("print(1)", 1, "print cannot be called"),
        ("flow.window_bytes = random.random()", 1, "random.random is not available"),
        ("flow.window_bytes = time.time()", 1, "time.time is not available"),
        ("flow.window_bytes = TABLE[0]", 1, "only paths and array fields can be indexed"),
        ("event.now_ns = 3", 1, "event is read only"),
        ("params.gain += 1.0", 1, "params is read only"),
        ("e = event\ne.now_ns = 1", 2, "event is read only"),
        ("shrink(event)", None, "event is read only"),
        ("x = [1, 2]", 1, "a list needs the heap"),
        ("x = {1: 2}", 1, "a dict needs the heap"),
        ("x = {1, 2}", 1, "a set needs the heap"),
        ("x = max([i for i in range(3)])", 1, "needs the heap"),
        ("f = lambda: 3", 1, "a function inside a function"),
        ("x = f'{event.path}'", 1, "a formatted string"),
        ("x = event.rtt_ns ** 2", 1, "** differs"),
        ("x = 'text'", 1, "is not a number"),
        ("x = min(event.path)", 1, "min got 1 arguments"),
        ("x = abs(event.path, 1)", 1, "abs got 2 arguments"),
        ("x = 1 << event.path", 1, "a shift by a variable"),
        ("x = event.path >> 64", 1, "a shift by a variable"),
        ("x = 1\nx <<= event.path", 2, "a shift by a variable"),
        ("x = 1 << 3\ny = 9223372036854775808", 2, "does not fit an int64"),
        ("for i in range(10**9):\n    pass", 1, "** differs"),
        ("for i in range(100000):\n    pass", 1, "up to 100000 steps"),
        ("for i in range(9223372036854775807):\n    pass", 1, "too large"),
        ("for i in range(len(flow.nothing)):\n    pass", 1, "range is not constant"),
        ("x = None", 1, "is not a number"),
        ("x = event.rtt", 1, "event has no field 'rtt'"),
        ("flow.extra = 1", 1, "flow has no field 'extra'"),
        ("if event.path:\n    x = 1\nflow.cuts = x", 3, "may be read before it is set"),
        ("for i in range(3):\n    x = 1\nflow.cuts = x", 3, "may be read before it is set"),
        ("return 3", 1, "a hook cannot return a value"),
        ("return\nx = 1", 2, "never reached"),
        ("raise SystemExit", 1, "only plain built-in errors"),
        ("flow = 3", 1, "flow is a record"),
        ("x = eval(3)", 1, "eval cannot be called"),
        ("x = flow.__class__", 1, "flow has no field '__class__'"),
        ("x = (1).real", 1, "only records have fields"),
        ("yield 3", 1, "Yield is not part"),
        ("def inner():\n    pass", 1, "a function inside a function"),
        ("x = event.path is event.kind", 1, "is compares objects"),
        ("assert event.path == 3, [1]", 1, "a list needs the heap"),
        ("x = math.floor(1.5)", 1, "math.floor is not available"),
        ("x: int = 3\ny = x = 3", 2, "several targets"),
        ("flow.cuts = event.rand", 1, "a float is stored in the integer field cuts"),
        ("flow.cuts += 1\nflow.seen = 3", 2, "seen is an array"),
        ("x = flow.seen", 1, "seen is an array"),
        ("x = flow.cuts[0]", 1, "cuts is a number"),
        ("flow.cuts = flow.seen[4]", 1, "index 4 is out of range"),
        ("flow.seen[-1] = 1", 1, "index -1 is out of range"),
        ("x = 1\nflow.seen[LIMIT] += 1", 2, "index 4 is out of range"),
    ],
)
def test_lint__refused(tmp_path: Path, body: str, line: int | None, reason: str) -> None:
    error = refusal(tmp_path, body)
    assert reason in error.reason
    assert error.remedy
    if line is not None:
        assert error.line == FIRST + line - 1
    assert str(error).startswith(f"{error.file}:{error.line}: ")


def statuses(folder: Path, body: str, **fields: float) -> tuple[int, int]:
    """Calls a hook compiled and interpreted; returns both statuses."""
    from transport.compiler import Interpreted
    from transport.compiler.source import load

    policy = load(write(folder, body))
    runners: tuple[Library, Interpreted] = (jit(policy), Interpreted(policy))
    answers = []
    for runner in runners:
        event = policy.family.event.zeros()
        for name, value in fields.items():
            event[name] = value
        answers.append(
            runner.call(
                "on_ack",
                flow=policy.flow.zeros(),
                shared=None,
                params=policy.params.filled(),
                event=event,
                result=policy.family.result.zeros(),
            )
        )
    return answers[0], answers[1]


@pytest.mark.parametrize(
    ("body", "fields", "status"),
    [
        ("flow.seen[event.path] = 1", {"path": 3}, 0),
        ("flow.seen[event.path] = 1", {"path": 4}, 1),
        ("flow.seen[event.path] = 1", {"path": -5}, 1),
        ("flow.cuts = flow.seen[event.path]", {"path": 1 << 40}, 1),
        ("flow.cuts = event.rtt_ns // event.path", {"path": 0}, 1),
        ("flow.cuts = event.rtt_ns % event.path", {"path": 0}, 1),
        ("flow.window_bytes = event.rtt_ns / event.path", {"path": 0}, 1),
        ("flow.window_bytes = 1.0 / event.rand", {"rand": 0.0}, 1),
        ("flow.cuts = int(event.rand)", {"rand": float("nan")}, 1),
        ("flow.cuts = int(event.rand)", {"rand": 1e300}, 1),
        ("flow.cuts = int(event.rand)", {"rand": -7.9}, 0),
        ("flow.cuts = (event.path << 3) >> 1", {"path": 5}, 0),
        ("flow.cuts = event.rtt_ns % event.path", {"rtt_ns": -(1 << 63), "path": -1}, 0),
        ("flow.window_bytes = math.sqrt(event.rand)", {"rand": -1.0}, 1),
        ("flow.window_bytes = math.log(event.rand)", {"rand": 0.0}, 1),
        ("flow.window_bytes = math.exp(event.rand)", {"rand": 1e6}, 1),
        ("flow.window_bytes = math.exp(event.rand)", {"rand": 1.0}, 0),
        ("assert event.path == 3", {"path": 3}, 0),
        ("assert event.path == 3", {"path": 2}, 1),
        ("if event.path == 2:\n    raise ValueError('two')", {"path": 2}, 1),
        ("flow.window_bytes = half(event.path)", {"path": 3}, 0),
        ("for i in range(LIMIT):\n    flow.seen[i] = i", {}, 0),
        ("for i in range(len(flow.seen)):\n    flow.seen[i] = i", {}, 0),
    ],
)
def test_lint__what_goes_wrong_returns_one(
    tmp_path: Path, body: str, fields: dict[str, float], status: int
) -> None:
    assert statuses(tmp_path, body, **fields) == (status, status)


def test_lint__an_index_past_the_paths_returns_one(tmp_path: Path) -> None:
    path = tmp_path / "wild.py"
    path.write_text(
        "from congestion.api import path_policy, record\n"
        "def pick(flow, paths, params, event, result):\n"
        "    result.path = paths[event.path].usable\n"
        "    result.burst_bytes = 1\n"
        'POLICY = path_policy("wild", pick=pick, on_feedback=pick)\n'
    )
    from transport.compiler.library import load
    from transport.compiler.source import load as load_source

    policy = load_source(path)
    library = load(compile_policy(path, tmp_path / "wild.so"))
    event, result = policy.family.event.zeros(), policy.family.result.zeros()
    for index, status in ((0, 0), (3, 0), (4, 1), (1 << 40, 1), (-5, 1)):
        event["path"] = index
        assert (
            library.call(
                "pick",
                flow=None,
                shared=policy.shared.zeros(4),
                params=None,
                event=event,
                result=result,
            )
            == status
        )


PATHS = """from congestion.api import loss_policy, path_policy, record
def hold(flow, paths, params, event, result):
    pass
def hook(flow, paths, params, event, result):
    {}
POLICY = {}
"""
PATH = 'path_policy("tried", path=record(seen=int), pick=hook, on_feedback=hold)'
LOSS = 'loss_policy("tried", on_ack=hook, on_timer=hold)'


@pytest.mark.parametrize(
    ("body", "declared", "reason", "remedy"),
    [
        ("paths[0].usable = 0", PATH, "usable is written by the core", "path=record(...)"),
        ("paths[event.path].rtt_ns += 1", PATH, "rtt_ns is written by the core", "path=record"),
        ("one = paths[0]; one.inflight_bytes = 1", PATH, "written by the core", "path=record"),
        ("paths[256].seen = 1", PATH, "index 256 is out of range", "0 to 255"),
        (
            "for i in range(len(paths)): pass",
            LOSS,
            "is not an array of records",
            "declare path=record(...)",
        ),
        (
            "result.probe = len(paths)",
            LOSS,
            "is not an array of records",
            "declare path=record(...)",
        ),
    ],
)
def test_lint__of_paths_refused(
    tmp_path: Path, body: str, declared: str, reason: str, remedy: str
) -> None:
    path = tmp_path / "tried.py"
    path.write_text(PATHS.format(body, declared))
    with pytest.raises(PolicyError) as caught:
        compile_policy(path, tmp_path / "out.so")
    assert caught.value.line == 5
    assert reason in caught.value.reason
    assert remedy in caught.value.remedy


def test_lint__a_loss_policys_path_fields_are_its_own(tmp_path: Path) -> None:
    path = tmp_path / "tried.py"
    own = LOSS.replace("on_ack", "path=record(usable=int), on_ack")
    path.write_text(PATHS.format("paths[event.path].usable = 1", own))
    assert compile_policy(path, tmp_path / "out.so").exists()


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("x = 1\ndef f(:\n", 2, "syntax"),
        ("x = 1\ny = 1 / 0\n", 2, "ZeroDivisionError"),
        ("x = 1\n", 0, "no POLICY is declared"),
    ],
)
def test_lint__a_file_that_declares_nothing(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(PolicyError, match=reason) as caught:
        compile_policy(path, tmp_path / "out.so")
    assert caught.value.line == line


def test_lint__an_unknown_baseline_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="aarch64, x86-64-v3"):
        compile_policy(write(tmp_path, "pass"), tmp_path / "out.so", cpu="z80")


def answer(policy: Policy, runner: Library | Interpreted) -> float:
    """The answer of on_ack to an event of zeros."""
    result = policy.family.result.zeros()
    status = runner.call(
        "on_ack",
        flow=policy.flow.zeros(),
        shared=None,
        params=policy.params.filled(),
        event=policy.family.event.zeros(),
        result=result,
    )
    assert status == 0
    return float(result["window_bytes"][0])


SAVED_TWICE = (
    "flow.window_bytes = 1.0\nresult.window_bytes = 1.0",
    "flow.window_bytes = 2.0\nresult.window_bytes = 2.0",
)


def test_load__what_is_compiled_is_what_the_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file saved twice within a second, with equal size, is loaded from its new text."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    file = write(tmp_path, SAVED_TWICE[0])
    os.utime(file, (1_000_000_000, 1_000_000_000))
    first = load(file)
    assert write(tmp_path, SAVED_TWICE[1]) == file
    os.utime(file, (1_000_000_000, 1_000_000_000))
    second = load(file)
    assert answer(first, Interpreted(first)) == 1.0
    assert answer(second, Interpreted(second)) == 2.0
    assert answer(second, jit(second)) == 2.0
    with pytest.raises(PolicyError, match="differs from the file"):
        jit(first)  # refused, because the file's text has been replaced


def test_load__helpers_from_stale_byte_code_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    helper = tmp_path / "stale_helper.py"
    helper.write_text("def grow(x):\n    return x + 1.0\n")
    file = tmp_path / "user.py"
    body = HEAD.replace("import math", "import math\nfrom stale_helper import grow", 1)
    file.write_text(body + "    result.window_bytes = grow(1.0)\n" + TAIL)
    user = load(file)
    assert answer(user, jit(user)) == 2.0
    helper.write_text("def grow(x):\n    return x + 2.0\n")
    with pytest.raises(PolicyError, match=r"stale_helper.py:1: grow differs from the file"):
        jit(load(file))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"# caf\xe9\n", "not UTF-8 at byte 5"),
        (b"import sys\nsys.exit(5)\n", "2: SystemExit: 5"),
        (b"x = (\n", "syntax"),
        (b"raise ValueError('why')\n", "1: ValueError: why"),
        (b"x = 1\n", "no POLICY is declared"),
    ],
)
def test_load__what_a_strangers_file_does_is_a_refusal(
    tmp_path: Path, text: bytes, says: str
) -> None:
    file = tmp_path / "stranger.py"
    file.write_bytes(text)
    with pytest.raises(PolicyError, match=says):
        load(file)
