"""Tests faults of GPUs: kernel logs in the forms that dmesg and journalctl print, and verdicts.

There is no GPU here: the lines are made up, in the form of NVIDIA's driver.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.diagnose.support import NOW_NS, traced
from tests.trace.writer import AHEAD_NS, communicator, operation, rank_of
from transport.cli import weft
from transport.diagnose.facts import Process
from transport.diagnose.finding import Finding, Place
from transport.diagnose.hardware import AROUND_NS, Job, Trouble, hardware_faults, merged, slowed
from transport.host import kernel_log
from transport.host.kernel_log import UNKNOWN_NS, KernelLogError, Kmsg, parsed, read_file
from transport.host.xids import HARDWARE, XIDS, xid_of
from transport.trace.inventory import Host, Inventory

SECOND = 10**9
FELL = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
FAULT = "NVRM: Xid (PCI:0000:1b:00): 31, pid=101, name=python, Ch 00000008, MMU Fault"
ROW = "NVRM: Xid (PCI:0000:1b:00): 63, pid=1896, Row Remapper: New row marked for remapping"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, [str(word) for word in words])


@pytest.mark.parametrize(
    ("head", "host", "time_ns"),
    [
        ("[ 1234.567890] ", "", UNKNOWN_NS),
        ("Nov 28 10:00:00 node7 kernel: ", "node7", "2026-11-28T10:00:00"),
        ("Dec 31 23:00:00 node7 kernel: [12.5] ", "node7", "2025-12-31T23:00:00"),
        ("2026-11-28T10:00:00+00:00 node7 kernel: ", "node7", "2026-11-28T10:00:00+00:00"),
        ("[Sat Nov 28 10:00:00 2026] ", "", "2026-11-28T10:00:00"),
    ],
)
def test_kernel_log__forms_of_lines(head: str, host: str, time_ns: int | str) -> None:
    now_s = datetime.fromisoformat("2026-11-30T00:00:00").timestamp()
    (one,) = parsed(["another line", head + FELL], now_s)
    if isinstance(time_ns, str):
        time_ns = int(datetime.fromisoformat(time_ns).timestamp()) * SECOND
    assert (one.number, one.pci, one.pid) == (79, "0000:3b:00", 0)
    assert one.text == "GPU has fallen off the bus"
    assert (one.host, one.time_ns) == (host, time_ns)


def test_kernel_log__processes_are_named() -> None:
    (one,) = parsed([FAULT], 0)
    assert (one.number, one.pid, one.text) == (31, 101, "Ch 00000008, MMU Fault")
    (other,) = parsed(["[5.1] NVRM: Xid (0000:01:00): 13, Graphics SM Warp Exception"], 0)
    assert (other.number, other.pci, other.pid) == (13, "0000:01:00", 0)


def test_kernel_log__a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KernelLogError, match="No such file"):
        read_file(tmp_path / "none")
    with pytest.raises(KernelLogError, match="No such file"):
        Kmsg(tmp_path / "none")


def test_kernel_log__records_of_the_buffer_have_times(tmp_path: Path) -> None:
    """A pipe stands in for /dev/kmsg: one read is one record there, too, if one is written."""
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    log = Kmsg(pipe)
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(writer, f"3,99,5000000,-;{FELL}\n SUBSYSTEM=pci\n".encode())
        (one,) = log.read()
        assert one.number == 79
        assert one.time_ns != UNKNOWN_NS
        assert log.read() == []
    finally:
        os.close(writer)
        log.close()


def test_xids__unknown_numbers_blame_nobody() -> None:
    assert not xid_of(9999).is_fault
    assert xid_of(79).blames == HARDWARE
    assert not xid_of(31).is_fault
    assert {13, 31, 43, 45, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140} <= XIDS.keys()


def job(**more: Any) -> Job:
    """Four ranks, two on each of two hosts, at times of day."""
    processes = [
        Process(rank, f"node{rank // 2}", 100 + rank, None, NOW_NS, NOW_NS + 100 * SECOND)
        for rank in range(4)
    ]
    return Job(processes, NOW_NS + 100 * SECOND, **more)


def test_hardware__a_gpu_that_fell_off_the_bus_is_found() -> None:
    (one,), notes = hardware_faults(
        job(), [Trouble("xid 79", "node1.cluster", "0000:3b:00", 0, NOW_NS + SECOND, "text")]
    )
    assert (one.kind, one.certain, notes) == ("hardware_fault", True, [])
    assert (one.place.kind, one.place.ranks) == ("gpu", (2, 3))
    assert "XID 79 (the GPU has fallen off the bus)" in one.evidence
    assert "Whether it is used by ranks 2-3 is not known." in one.evidence
    (alone,) = merged([], [one])
    assert not alone.certain  # the job may use another GPU of the host
    (with_effect,) = merged([finding("crash", 2)], [one])
    assert with_effect.certain


def test_hardware__its_rank_is_told_by_the_process_or_by_the_inventory() -> None:
    (one,), _ = hardware_faults(job(), [Trouble("xid 48", "node1", "", 103, NOW_NS)])
    assert one.place.ranks == (3,)
    gpus = ("0000:1b:00", "0000:3b:00")
    known = Inventory({"node1": Host("node1", "r1", (2, 3), gpus)})
    (one,), _ = hardware_faults(
        job(inventory=known), [Trouble("xid 48", "node1", "0000:1b:00", 0, NOW_NS)]
    )
    assert one.place.ranks == (2,)


@pytest.mark.parametrize(
    ("trouble", "note"),
    [
        (Trouble("xid 79", "node9", "", 0, NOW_NS), "1 errors of GPUs are of hosts that the job"),
        (
            Trouble("xid 79", "node1", "", 0, NOW_NS - AROUND_NS - SECOND),
            "1 errors of GPUs came when the job did not run",
        ),
        (Trouble("xid 31", "node1", "", 0, NOW_NS), "XID 31 (a page fault: the program used"),
        (Trouble("xid 777", "node1", "", 0, NOW_NS), "XID 777 (not in weft's table), which does"),
    ],
)
def test_hardware__without_evidence_no_gpu_is_blamed(trouble: Trouble, note: str) -> None:
    findings, notes = hardware_faults(job(), [trouble])
    assert findings == []
    assert note in notes[0]


@pytest.mark.parametrize(
    "trouble",
    [
        Trouble("xid 79", "node1", "0000:3b:00"),  # when is not known
        Trouble("xid 79", "", "0000:3b:00", 0, NOW_NS),  # of which host is not known
        Trouble("xid 63", "node1", "0000:3b:00", 0, NOW_NS),  # the GPU still works
        Trouble("remap pending", "node1", "0000:3b:00", 0, NOW_NS),
    ],
)
def test_hardware__what_is_less_clear_is_a_suspicion(trouble: Trouble) -> None:
    (one,), _ = hardware_faults(job(), [trouble])
    assert (one.kind, one.certain) == ("hardware_fault", False)


def test_hardware__of_a_job_without_hosts_it_is_a_suspicion() -> None:
    """NCCL's RAS tells the ids of processes, and no names of hosts."""
    nowhere = Job([Process(rank, "", 100 + rank, None, 0, 0) for rank in range(4)], 0)
    (one,), notes = hardware_faults(nowhere, [Trouble("xid 79", "node1", "", 103, NOW_NS)])
    assert (one.place.name, one.place.ranks, one.certain) == ("GPU ? of node1", (3,), False)
    assert notes == []


def test_hardware__a_process_of_two_sources_is_one() -> None:
    twice = job()
    twice = Job([*twice.processes, Process(3, "", 103, None, 0, 0)], twice.end_ns)
    (one,), _ = hardware_faults(twice, [Trouble("xid 48", "node1", "", 103, NOW_NS)])
    assert (one.place.ranks, one.certain) == ((3,), True)


def finding(kind: str, *ranks: int) -> Finding:
    place = Place("rank", f"rank {ranks[0]}", ranks)
    return Finding(kind, place, 1, 2, 0.9, True, "It did not call.", "", "")


def test_hardware__what_it_explains_becomes_part_of_it() -> None:
    faults, _ = hardware_faults(job(), [Trouble("xid 79", "node1", "", 103, NOW_NS)])
    hang, other = finding("non_communication_hang", 3), finding("non_communication_slow", 0)
    one, left = merged([hang, other], faults)
    assert left is other
    assert "It explains non_communication_hang of rank 3: It did not call." in one.evidence
    assert one.more["explains"][0]["place"] == "rank 3"


def test_hardware__heat_counts_only_with_a_slow_rank() -> None:
    heat = Trouble("heat", "node1", "", 0, NOW_NS, ranks=(3,))
    assert hardware_faults(job(), [heat]) == ([], [])
    slow, other = finding("non_communication_slow", 3), finding("non_communication_slow", 1)
    one, left = slowed([slow, other], {3: [heat]})
    assert (one.kind, left) == ("hardware_fault", other)
    assert "Its GPU: heat slows down its clocks." in one.evidence


def absent_rank(folder: Path) -> Path:
    """A trace of two ranks at times of day; the second does not call the last AllReduce."""
    for rank in range(2):
        one = rank_of(folder, rank, 2)
        one.ended = False
        comm = communicator(one, 7, rank, 2)
        for at in range(12 - rank):
            begin_ns = at * SECOND
            operation(one, comm, "AllReduce", begin_ns, begin_ns + 1000, count=4, sequence=at)
        one.write()
    return folder


def test_diagnose__reads_kernel_logs(tmp_path: Path) -> None:
    folder = absent_rank(tmp_path)
    stamp = datetime.fromtimestamp((AHEAD_NS + 5 * SECOND) / 1e9).astimezone().isoformat()
    log = tmp_path / "dmesg.txt"
    log.write_text(f"{stamp[:19]}{stamp[-6:]} node1 kernel: {FELL}\n")
    done = run("diagnose", folder, "--kernel-log", log, "--json", "-")
    faults = [one for one in json.loads(done.output)["findings"] if one["place"]["kind"] == "gpu"]
    assert [(one["class"], one["certain"]) for one in faults] == [("hardware_fault", False)]
    assert (faults[0]["place"]["name"], faults[0]["place"]["ranks"]) == (
        "GPU 0000:3b:00 of node1",
        [1],
    )
    racks = tmp_path / "racks.toml"
    racks.write_text('[hosts.node1]\nrack = "r2"\nranks = 1\ngpus = ["3b:00"]\n')
    done = run("diagnose", folder, "--kernel-log", log, "--inventory", racks)
    assert "hardware_fault: GPU 0000:3b:00 of node1, rack r2, confidence 97 %" in done.output
    assert done.exit_code == 1


def test_diagnose__a_log_without_times_names_its_host_by_the_option(tmp_path: Path) -> None:
    folder = absent_rank(tmp_path)
    log = tmp_path / "dmesg.txt"
    log.write_text(f"[ 12.5] {FELL}\n[ 13.5] {ROW}\n")
    found = json.loads(
        run("diagnose", folder, "--kernel-log", f"node1={log}", "--json", "-").output
    )
    faults = [one for one in found["findings"] if one["class"] == "hardware_fault"]
    assert [one["place"]["name"] for one in faults] == [
        "GPU 0000:3b:00 of node1",
        "GPU 0000:1b:00 of node1",
    ]
    assert not any(one["certain"] for one in faults)
    assert run("diagnose", folder, "--kernel-log", "none").exit_code == 2


def test_diagnose__a_kernel_log_that_cannot_be_read_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = absent_rank(tmp_path)
    monkeypatch.setattr("socket.gethostname", lambda: "node0")
    monkeypatch.setattr(Kmsg.__init__, "__defaults__", (tmp_path / "kmsg",))
    text = "note: kernel log not readable: "
    assert text in run("diagnose", folder).output
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    assert text not in run("diagnose", folder).output  # the job did not run on this host
    assert Path("/dev/kmsg") == kernel_log.KMSG


def test_diagnose__a_simulation_has_no_kernel_log(tmp_path: Path) -> None:
    assert "kernel log" not in run("diagnose", traced(tmp_path)).output
