"""Tests the judge of a running job: incidents, learned pauses, evidence of hosts, metrics."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.lib.diagnosis_hosts import Shape, host_file
from transport.cli import diagnose_live
from transport.diagnose.diagnosis import Diagnosis
from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place
from transport.diagnose.live import claim, collector
from transport.diagnose.live.collector import Collector
from transport.diagnose.live.incidents import BESIDE, HOLD_LOOKS
from transport.diagnose.live.merge import merged
from transport.diagnose.live.metrics import FINDINGS_MAX, METRICS, Verdicts, markdown
from transport.diagnose.live.pauses import Pauses
from transport.diagnose.live.share import HostFile, write
from transport.diagnose.live.verdicts import FILE, append, reported

ROOT = Path(__file__).resolve().parents[2]
SHAPE = Shape(32, iterations=12, sent_rows=256)
SECOND_NS = 1_000_000_000


def hosts(interval: int, slow_rank: int = -1) -> list[HostFile]:
    return [host_file(SHAPE, host, interval, slow_rank) for host in range(SHAPE.hosts)]


def waiting(interval: int, absent: int, seconds: float) -> list[HostFile]:
    """All ranks but `absent` have called one more operation and have waited in it for `seconds`."""
    made = []
    for host, said in enumerate(hosts(interval)):
        calls = said.tables["calls"]
        last = {name: column[calls["id"] == calls["id"].max()] for name, column in calls.items()}
        last["id"], last["sequence"] = last["id"] + 1, last["sequence"] + 1
        last["begin_ns"] = last["end_ns"] + 1_000_000
        last["arrival_ns"] = last["begin_ns"] + 1_000
        last["end_ns"] = np.full(len(last["id"]), -1)
        kept = host * 8 + last["process"] != absent
        more = {name: np.concatenate([column, last[name][kept]]) for name, column in calls.items()}
        read_ns = said.read_ns + round(seconds * SECOND_NS)
        made.append(
            dataclasses.replace(said, tables={**said.tables, "calls": more}, read_ns=read_ns)
        )
    return made


def seen(said: list[HostFile], rank: int, **evidence: Any) -> list[HostFile]:
    host, number = divmod(rank, 8)
    one = {"process": number, "since_ns": said[host].read_ns, "readings": 5, **evidence}
    return [
        dataclasses.replace(each, evidence=[one]) if at == host else each
        for at, each in enumerate(said)
    ]


def told(collector: Collector, said: list[HostFile]) -> list[tuple[str, str, str]]:
    events = collector.step(said)
    return [
        (one.what, one.incident.finding.kind, one.incident.finding.place.name) for one in events
    ]


def test_incidents__begin_once_and_end() -> None:
    collector = Collector()
    assert told(collector, hosts(1)) == []
    assert told(collector, hosts(2, slow_rank=9)) == []  # one interval may be chance
    assert told(collector, hosts(3, slow_rank=9)) == [
        ("finding", "non_communication_slow", "rank 9")
    ]
    assert told(collector, hosts(4, slow_rank=9)) == []
    ends = [told(collector, hosts(5 + at)) for at in range(HOLD_LOOKS + 3)]
    assert [one for one in ends if one] == [[("ended", "non_communication_slow", "rank 9")]]
    assert told(collector, hosts(20, slow_rank=9)) == []
    assert told(collector, hosts(20, slow_rank=9)) == []  # no new iteration has begun
    assert collector.found == 1
    assert told(collector, hosts(21, slow_rank=9))[0][0] == "finding"
    assert collector.found == 2


def test_hang__is_suspected_and_then_found() -> None:
    collector = Collector(pauses=Pauses(untaught_ns=0))
    told(collector, hosts(1))
    assert told(collector, waiting(2, 13, 0.8)) == []
    assert told(collector, waiting(2, 13, 0.9)) == [
        ("suspicion", "non_communication_hang", "rank 13")
    ]
    assert told(collector, waiting(2, 13, 30)) == [("finding", "non_communication_hang", "rank 13")]


def test_hang__an_untaught_job_is_given_time() -> None:
    collector = Collector()
    told(collector, hosts(1))
    assert told(collector, waiting(2, 13, 250)) == []
    assert told(collector, waiting(2, 13, 270))[0][0] == "suspicion"
    assert told(collector, waiting(2, 13, 290)) == []
    assert told(collector, waiting(2, 13, 310))[0][0] == "finding"


def paused(interval: int, seconds: float) -> list[HostFile]:
    """All ranks have called one more operation, rank 13 `seconds` later than the others."""
    said = waiting(interval, -1, 0.8)
    late_ns = round(seconds * SECOND_NS)
    for at, host in enumerate(said):
        calls = host.tables["calls"]
        new = calls["end_ns"] < 0
        calls["end_ns"] = np.where(new, calls["begin_ns"] + late_ns + 5_000_000, calls["end_ns"])
        mine = new & (at * 8 + calls["process"] == 13)
        for name in ("begin_ns", "arrival_ns"):
            calls[name] = np.where(mine, calls[name] + late_ns, calls[name])
        said[at] = dataclasses.replace(host, read_ns=host.read_ns + late_ns)
    return said


def test_hang__pauses_of_the_job_are_learned() -> None:
    collector = Collector()
    told(collector, hosts(1))
    told(collector, paused(2, 20))
    assert 20 * SECOND_NS <= collector.pauses.longest_ns < 21 * SECOND_NS
    told(collector, hosts(60))
    # The time from interval 2 to 60 counts as a pause, too.
    longest_ns = collector.pauses.longest_ns
    assert collector.pauses.taught == 2
    seconds = longest_ns / SECOND_NS
    # The pause is shorter than a known one.
    assert told(collector, waiting(61, 13, 0.9 * seconds)) == []
    told(collector, waiting(61, 13, 1.4 * seconds))
    found = told(collector, waiting(61, 13, 1.5 * seconds))
    assert found == [("suspicion", "non_communication_hang", "rank 13")]
    assert told(collector, waiting(61, 13, 2.5 * seconds))[0][0] == "finding"
    assert collector.pauses.longest_ns == longest_ns  # the pause of a hang is not learned


def test_hang__one_that_was_a_pause_teaches() -> None:
    collector = Collector(pauses=Pauses(untaught_ns=0))
    told(collector, hosts(1))
    assert told(collector, waiting(2, 13, 30))[0][0] == "finding"
    told(collector, paused(2, 31))
    assert 31 * SECOND_NS <= collector.pauses.longest_ns < 32 * SECOND_NS


def test_hang__the_time_of_a_stopped_process_teaches_nothing() -> None:
    collector = Collector(pauses=Pauses(untaught_ns=0))
    told(collector, hosts(1))
    stopped = seen(waiting(2, 13, 30), 13, kind="stopped", text="it is stopped")
    stopped[1].processes[5]["state"] = "T"
    assert told(collector, stopped)[0][0] == "finding"
    told(collector, paused(2, 31))
    assert collector.pauses.longest_ns < SECOND_NS


def test_hang__iterations_of_a_stopped_process_are_not_judged_as_slow() -> None:
    collector = Collector(pauses=Pauses(untaught_ns=0))
    told(collector, hosts(1))
    stopped = seen(waiting(2, 13, 30), 13, kind="stopped", text="it is stopped")
    stopped[1].processes[5]["state"] = "T"
    told(collector, stopped)
    assert told(collector, hosts(2, slow_rank=9)) == []  # iterations from before it went on
    assert told(collector, hosts(60, slow_rank=9)) == []
    # It is no effect of the stop if it lasts.
    found = [one for at in range(BESIDE) for one in told(collector, hosts(61 + at, slow_rank=9))]
    assert ("finding", "non_communication_slow", "rank 9") in found


def test_hang__a_remote_process_that_is_stopped_needs_no_evidence_but_its_state() -> None:
    """Host 1's state of its process, T, is enough for the rules that judge folders of traces."""
    said = seen(waiting(2, 13, 2), 13, kind="stopped", text="it is stopped")
    said[1].processes[5]["state"] = "T"
    job = merged(said, None)
    assert job is not None
    assert {one for one, state in job.facts.states.items() if state == "T"} == {13}
    said[1].evidence[0]["readings"] = 1  # py-spy and debuggers stop a process for a moment
    job = merged(said, None)
    assert job is not None
    assert set(job.facts.states.values()) == {"S"}


def test_hang__hosts_that_read_at_different_times_do_not_look_still() -> None:
    """Host 0 has read its traces four seconds later than the others, whose calls are still open."""
    made = Collector(pauses=Pauses(untaught_ns=0))
    made.step(hosts(1))
    said = waiting(2, -1, 0.0)
    later = host_file(dataclasses.replace(SHAPE, iterations=22), 0, 2)
    assert later.read_ns > said[1].read_ns + 3 * SECOND_NS
    assert made.step([later, *said[1:]]) == []
    job = merged([later, *said[1:]], None)
    assert job is not None
    assert job.facts.end_ns == min(one.read_ns for one in said[1:]) - SECOND_NS
    assert job.facts.calls["begin_ns"].max() <= job.facts.end_ns


def test_hang__a_job_whose_processes_are_gone_does_not_stand_still() -> None:
    said = waiting(2, 13, 3600)
    for host in said:
        for one in host.processes:
            one["state"] = ""
    job = merged(said, None)
    assert job is not None
    assert job.facts.end_ns < said[0].read_ns - 3000 * SECOND_NS


def test_evidence__a_stopped_process_is_told_to_be_stopped() -> None:
    collector = Collector()
    told(collector, hosts(1))
    said = seen(waiting(2, 13, 30), 13, kind="stopped", text="the process is stopped (state T)")
    (event,) = collector.step(said)
    finding = event.incident.finding
    assert (event.what, finding.kind, finding.place.name) == (
        "finding",
        "non_communication_hang",
        "rank 13",
    )
    assert "the process is stopped (state T)" in finding.evidence
    assert "kill -CONT 105 on node1" in finding.advice


def test_evidence__a_stop_after_a_pause_is_found_as_well(tmp_path: Path) -> None:
    collector = Collector(pauses=Pauses(untaught_ns=0))
    told(collector, hosts(1))
    hang = ("finding", "non_communication_hang", "rank 13")
    assert told(collector, waiting(2, 13, 30)) == [hang]
    said = seen(waiting(2, 13, 31), 13, kind="stopped", text="the process is stopped (state T)")
    append(tmp_path, collector.step(said))
    assert told(collector, said) == []
    assert collector.found == 2
    assert reported(tmp_path, 0) == {("non_communication_hang", "rank", "rank 13", True)}
    exposed = {one.name: one.samples for one in Verdicts(collector).collect()}
    assert len(exposed["weft_diagnosis_finding"]) == 1  # Prometheus refuses two that are alike


@pytest.mark.parametrize("kind", ["gone", "zombie", "stopped"])
def test_evidence__a_hang_waits_until_a_first_reading_is_confirmed(kind: str) -> None:
    collector = Collector(pauses=Pauses(untaught_ns=0))
    told(collector, hosts(1))
    said = seen(waiting(2, 13, 30), 13, kind=kind, text="it does not run", readings=1)
    assert told(collector, said) == []
    said[1].evidence[0]["readings"] = 2
    crash = "non_communication_hang" if kind == "stopped" else "crash"
    assert told(collector, said) == [("finding", crash, "rank 13")]


def test_evidence__a_process_that_is_gone_has_crashed() -> None:
    collector = Collector()
    told(collector, hosts(1))
    said = seen(waiting(2, 13, 30), 13, kind="gone", text="there is no process 105 any more")
    assert told(collector, said) == [("finding", "crash", "rank 13")]


def test_evidence__refines_what_rules_say() -> None:
    said = waiting(2, 13, 30)
    said = seen(said, 13, kind="stack", text="py-spy shows load (data.py:7)", stack="all of it")
    said[1].evidence.append({"process": None, "kind": "gpu", "text": "GPU 3 reported XID 79"})
    collector = Collector()
    told(collector, hosts(1))
    assert collector.step(said) == []
    (event,) = collector.step([dataclasses.replace(one, read_ns=one.read_ns + 1) for one in said])
    finding = event.incident.finding
    assert "Py-spy shows load (data.py:7)." in finding.evidence
    assert "GPU 3 reported XID 79 (on node1)." in finding.evidence
    assert finding.more["stacks"] == {"rank 13": "all of it"}


def test_evidence__errors_of_gpus_are_faults_of_hardware() -> None:
    said = hosts(1)
    more = {"code": "xid 79", "pci": "0000:1b:00", "time_ns": said[0].read_ns}
    said = seen(said, 13, kind="gpu", text="GPU 3 reported XID 79", **more)
    (event,) = Collector().step(said)
    found = event.incident.finding
    assert (event.what, found.kind) == ("finding", "hardware_fault")
    assert (found.place.kind, found.place.ranks) == ("gpu", (13,))
    assert "It is the GPU of rank 13." in found.evidence
    assert Collector().step(seen(hosts(1), 13, kind="gpu", text="hot", code="heat")) == []


def test_evidence__engines_and_idle_programs_are_suspicions() -> None:
    for kind, words in (("engine", "gets no CPU"), ("idle", "has posted nothing")):
        judge = Collector()
        assert judge.step(seen(hosts(1), 13, kind=kind, text="engine 0", ns=30 * SECOND_NS)) == []
        said = seen(hosts(2), 13, kind=kind, text="engine 0", ns=30 * SECOND_NS)
        (event,) = judge.step(said)
        assert event.what == "suspicion"
        assert words in event.incident.finding.evidence


def starved(said: list[HostFile], *ranks: int) -> list[HostFile]:
    for rank in ranks:
        host, number = divmod(rank, 8)
        said[host].evidence.append(
            {"process": number, "kind": "starved", "text": "a thread had no core", "share": 0.4}
        )
    return said


def test_overload__a_host_whose_ranks_are_late_in_turn_is_one_incident() -> None:
    collector = Collector()
    told(collector, hosts(1))
    said = [
        told(collector, starved(hosts(2 + at, slow_rank=rank), 8, 9, 10))
        for at, rank in enumerate((9, 9, 10, 8, 9))
    ]
    slow = "non_communication_slow", "host node1"
    assert said == [[], [("finding", *slow)], [], [], []]
    (incident,) = collector.incidents.values()
    assert incident.finding.place.ranks == (8, 9, 10)
    assert "3 of 8 processes on node1" in incident.finding.evidence
    assert "for up to 40 % of the time. It slows rank " in incident.finding.evidence


def test_overload__a_single_rank_without_a_core_is_named_itself() -> None:
    collector = Collector()
    told(collector, hosts(1))
    told(collector, starved(hosts(2, slow_rank=9), 9))
    (event,) = collector.step(starved(hosts(3, slow_rank=9), 9))
    assert (event.what, event.incident.finding.place.name) == ("finding", "rank 9")
    assert "A thread had no core." in event.incident.finding.evidence


def test_overload__of_another_host_explains_nothing() -> None:
    collector = Collector()
    told(collector, hosts(1))
    told(collector, starved(hosts(2, slow_rank=9), 16, 17))
    said = told(collector, starved(hosts(3, slow_rank=9), 16, 17))
    assert said == [("finding", "non_communication_slow", "rank 9")]


def test_restart__the_later_process_of_a_rank_counts() -> None:
    said = hosts(1)
    old = dict(said[1].processes[2], number=99, pid=55, first_ns=1, last_ns=2)
    said[1].processes.append(old)
    collector = Collector()
    assert told(collector, said) == []
    assert collector.latest is not None
    assert collector.latest.ranks == SHAPE.ranks


def test_notes__are_told_once_whatever_their_numbers() -> None:
    collector = Collector()
    for dropped in (3, 4, 5):
        said = hosts(dropped)
        said[0].processes[0]["dropped"] = dropped
        said[1].notes.append(f"process {dropped} cannot be read")
        collector.step(said)
        assert len(collector.notes) == (2 if dropped == 3 else 0)


def test_verdicts__are_lines_of_json(tmp_path: Path) -> None:
    collector = Collector()
    append(tmp_path, [])
    assert not (tmp_path / FILE).exists()
    for interval in (1, 2):
        append(tmp_path, collector.step(hosts(interval, slow_rank=9)))
    append(tmp_path, collector.step(waiting(3, 13, 600)))
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [(one["event"], one["class"], one["incident"]) for one in lines] == [
        ("finding", "non_communication_slow", 1),
        ("finding", "non_communication_hang", 2),
    ]


def test_verdicts__say_what_was_reported_and_has_not_ended(tmp_path: Path) -> None:
    collector = Collector()
    for interval in (1, 2):
        append(tmp_path, collector.step(hosts(interval, slow_rank=9)))
    place = ("non_communication_slow", "rank", "rank 9", False)
    with (tmp_path / FILE).open("a") as file:
        file.write('[\n{"class": 3}\n7\n\xff\n' + "[" * 10_000 + "\n")
    assert reported(tmp_path, 0) == {place}
    assert reported(tmp_path, time.time_ns() + 60 * SECOND_NS) == set()
    append(tmp_path, collector.step(hosts(3)))
    for interval in range(4, 4 + HOLD_LOOKS):
        append(tmp_path, collector.step(hosts(interval)))
    assert reported(tmp_path, 0) == set()
    (tmp_path / FILE).unlink()
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(OSError, match="No such device"):
        append(tmp_path, collector.step(waiting(9, 13, 600)))
    assert reported(tmp_path, 0) == set()


def test_live__a_collector_that_takes_over_acts_on_open_findings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The collector before died when the fault began, and reported nothing."""
    (tmp_path / claim.NAME).write_text('{"weft_collector":["other",4711,99],"turn":7}')
    given = {
        "share": tmp_path,
        "collect": True,
        "window_s": 60.0,
        "iterations": 30,
        "job": None,
        "patience_s": 300.0,
        "interval_s": 0.05,
        "on_finding": "drain",
        "act": False,
        "action_s": 60.0,
        "listen": None,
    }
    live = diagnose_live.Live(None, None, given, None)
    assert live.claim is not None
    assert live.files is not None
    live.claim.stale_s = live.files.stale_s = 3600.0

    def step(interval: int) -> str:
        for host in hosts(interval, slow_rank=9):
            write(tmp_path, host)
        live.step()
        printed = capfd.readouterr()
        return printed.out + printed.err

    assert "another collector judges this share" in step(1)
    text = step(2)
    assert ("incident 1:" in text, "would run" in text) == (True, False)
    assert not (tmp_path / FILE).exists()
    live.claim.stale_s = -1.0  # as if the other collector had not renewed its claim for long
    text = step(3) + step(4)
    assert text.count("would run for incident 1: drain") == 1
    assert [json.loads(one)["event"] for one in (tmp_path / FILE).read_text().splitlines()] == [
        "finding"
    ]
    assert "would run" not in step(5)


def test_clocks__hosts_that_are_hours_off_are_named() -> None:
    said = hosts(1)
    hour_ns = 3600 * SECOND_NS
    for host in (1, 2):
        tables = {name: dict(table) for name, table in said[host].tables.items()}
        quick = tables["quick"]
        quick["sends"] = np.zeros(len(quick["process"]), bool)
        quick["pair"] = said[host - 1].tables["quick"]["pair"]
        quick["end_ns"] = said[host - 1].tables["quick"]["posted_ns"] + 3 * hour_ns * host + 9
        said[host] = dataclasses.replace(said[host], tables=tables)
    collector = Collector()
    collector.step(said)
    named = [note for note in collector.notes if "clock of" in note]
    assert [note.partition(";")[0] for note in named][:1] == ["the clock of node1 is 3 h ahead"]


def test_metrics__are_bounded() -> None:
    pytest.importorskip("prometheus_client")
    collector = Collector()
    for interval in (1, 2):
        collector.step(hosts(interval, slow_rank=9))
    families = {one.name: one for one in Verdicts(collector).collect()}
    assert set(families) == set(METRICS)
    (sample,) = families["weft_diagnosis_finding"].samples
    assert sample.labels == {"class": "non_communication_slow", "place": "rank 9"}
    assert families["weft_diagnosis_ranks"].samples[0].value == 32
    (one,) = collector.incidents.values()
    for number in range(10 * FINDINGS_MAX):
        collector._incidents._known["a", "b", str(number), False] = one
    count = sum(len(family.samples) for family in Verdicts(collector).collect())
    assert count <= 4 * FINDINGS_MAX + 20


def test_metrics__the_page_lists_them() -> None:
    """If this fails, put the output of transport.diagnose.live.metrics.markdown() into LIVE.md."""
    assert markdown() in (ROOT / "docs" / "LIVE.md").read_text()


def test_collector__what_nobody_thought_of_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Collector()
    for interval in (1, 2):
        made.step(hosts(interval, slow_rank=9))
    known = len(made.incidents)

    def fails(*_: Any) -> None:
        raise OverflowError("int too big to convert")

    monkeypatch.setattr(collector, "merged", fails)
    said = []
    for interval in range(HOLD_LOOKS + 2):
        assert made.step(hosts(3 + interval)) == []
        said += made.notes
    assert said == ["an interval could not be judged (OverflowError: int too big to convert)"]
    assert len(made.incidents) == known  # summaries that were not judged do not end a fault


def test_collector__without_hosts_no_incident_ends() -> None:
    made = Collector()
    for interval in (1, 2):
        made.step(hosts(interval, slow_rank=9))
    assert [made.step([]) for _ in range(HOLD_LOOKS + 2)] == [[]] * (HOLD_LOOKS + 2)
    assert len(made.incidents) == 1


def test_ranks__that_have_left_are_no_fault() -> None:
    """Two processes closed their traces, and their host still lists them."""
    made = Collector(pauses=Pauses(untaught_ns=0))
    made.step(hosts(1))
    said = hosts(2)
    for one in said[3].processes[:2]:
        one["ended"], one["state"], one["closed_ns"] = True, "", one["last_ns"] + 1_000
    assert made.step(said) == []
    assert made.latest is not None
    assert made.latest.findings == ()


@pytest.mark.parametrize(("followed", "event"), [(4, "finding"), (3, "suspicion")])
def test_collector__a_rank_that_is_missing_may_be_the_cause(
    monkeypatch: pytest.MonkeyPatch, followed: int, event: str
) -> None:
    """Ranks that cannot reach each other are only suspected, as they may wait for others."""
    pair = Place("pair", "rank 0 and rank 2", (0, 2))
    first = Finding("communication_hang", pair, 0, SECOND_NS, 0.9, True, "all paths fail", "", "")

    def judged(facts: Facts, _dead: object, _settings: object, notes: list[str]) -> Diagnosis:
        hang = dataclasses.replace(first, to_ns=facts.end_ns)
        return Diagnosis((hang,), 5, SECOND_NS, len(facts.processes), tuple(notes))

    monkeypatch.setattr(collector, "judged", judged)
    judge = Collector()
    events = [one for interval in range(1, 6) for one in told(judge, hosts(interval)[:followed])]
    assert events[-1] == (event, "communication_hang", "rank 0 and rank 2")
    assert (judge.found > 0) == (event == "finding")
