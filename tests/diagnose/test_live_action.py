"""Tests --on-finding: a dry run, one run for each incident, a command that hangs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, until
from transport.diagnose import Finding, Place
from transport.diagnose.live.action import Action
from transport.diagnose.live.incidents import Event, Incident


def event(what: str = "finding", number: int = 1) -> Event:
    finding = Finding(
        "crash",
        Place("rank", 'rank 5; "$(id)"', (5,)),
        10,
        20,
        0.9,
        True,
        "It died.",
        "SELECT 1",
        "Restart it.",
    )
    return Event(what, Incident(finding, number, certain=True))


def until_done(action: Action) -> list[str]:
    lines: list[str] = []

    def is_done() -> bool:
        lines.extend(action.poll())
        return not action._running

    until(is_done, "the command continues")
    return lines


def test_action__says_what_it_would_run(tmp_path: Path) -> None:
    action = Action(f"touch {tmp_path}/made", act=False, timeout_s=5)
    (line,) = action.tell(event())
    assert line == f"would run for incident 1: touch {tmp_path}/made (dry run: --act runs it)"
    assert action.tell(event()) == []
    assert not (tmp_path / "made").exists()


def test_action__runs_once_with_the_finding(tmp_path: Path) -> None:
    command = (
        f"cat > {tmp_path}/finding.json; env | grep ^WEFT_FINDING_ > {tmp_path}/variables; "
        f"echo run >> {tmp_path}/runs"
    )
    action = Action(command, act=True, timeout_s=PATIENCE_S)
    assert action.tell(event("suspicion")) == []
    assert action.tell(event("ended")) == []
    for _ in range(3):
        action.tell(event())
    assert until_done(action) == []
    found = json.loads((tmp_path / "finding.json").read_text())
    assert (found["class"], found["incident"], found["place"]["ranks"]) == ("crash", 1, [5])
    variables = dict(
        line.split("=", 1) for line in (tmp_path / "variables").read_text().splitlines()
    )
    assert variables["WEFT_FINDING_CLASS"] == "crash"
    assert variables["WEFT_FINDING_PLACE"] == 'rank 5; "$(id)"'
    assert variables["WEFT_FINDING_CONFIDENCE"] == "0.9"
    assert (tmp_path / "runs").read_text() == "run\n"


def test_action__a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    action = Action(f"sleep 600 & echo $! > {tmp_path}/child; wait", act=True, timeout_s=0.5)
    assert len(action.tell(event())) == 1
    (line,) = until_done(action)
    assert line == ("incident 1: the command was killed, because it ran longer than 0.5 s")
    child = int((tmp_path / "child").read_text())
    until(lambda: not _runs(child), "the command's child continues")


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_action__a_command_that_fails_is_named() -> None:
    action = Action("exit 3", act=True, timeout_s=PATIENCE_S)
    action.tell(event())
    assert until_done(action) == ["incident 1: the command ended with status 3"]


def test_action__its_end_kills_what_still_runs(tmp_path: Path) -> None:
    action = Action(f"echo $$ > {tmp_path}/pid; exec sleep 600", act=True, timeout_s=600)
    action.tell(event())
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    looks = []

    def hurries() -> bool:
        looks.append(1)
        return len(looks) > 3  # as if a signal came while it waits

    assert action.running == 1
    lines = action.close(PATIENCE_S, hurries)
    assert lines == ["incident 1: the command was killed, as diagnosis ends"]
    assert (action.running, len(looks)) == (0, 4)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
