"""Tests `weft diagnose --live` on real processes: healthy, stopped, killed; through a share."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.support import PATIENCE_S, ROOT
from tests.live.support import exchanging, ring, weft, weft_command
from tests.stopping import stopped
from tests.waiting import until
from transport.diagnose.live.share import file_of, parse, tag_of


@contextmanager
def diagnosing(where: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """`weft diagnose --live` on the traces in `where`, with verdicts and notes in files there."""
    words = ("--interval", "0.3", "--json", str(where / "verdicts.json"))
    command = weft_command("diagnose", "--live", str(where / "traces"), *words, *more)
    with (where / "stderr").open("w") as notes:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"WEFT_TELEMETRY": str(where)},
            stdout=subprocess.PIPE,
            stderr=notes,
            text=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE_S)


STOPPED = "process is stopped (state T)"
# What a busy host may bring as well: late ranks and lost packets.
OF_LOAD = ("non_communication_slow", "communication_slow", "congestion", "network_loss")


def verdicts(where: Path, event: str) -> list[dict[str, Any]]:
    """The verdicts of an event, without those that load on the host may bring."""
    file = where / "verdicts.json"
    text = file.read_text() if file.exists() else ""
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    found = [one for one in map(json.loads, lines) if one["event"] == event]
    return [one for one in found if one["class"] not in OF_LOAD]


def of_rank_3(where: Path, kind: str, said: str = "") -> dict[str, Any] | None:
    """The finding of a class about rank 3 whose evidence says this; None if there is none yet."""
    found = [one for one in verdicts(where, "finding") if one["class"] == kind]
    mine = (one for one in found if one["place"]["name"] == "rank 3")
    return next((one for one in mine if said in one["evidence"]), None)


def ended(process: subprocess.Popen[str], where: Path) -> tuple[int, str]:
    """Ends it; returns its exit status and what it wrote to standard error."""
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    return process.returncode, (where / "stderr").read_text()


def until_both_ran(share: Path) -> None:
    """Waits until four summaries of this host have told of both processes."""
    told: set[int] = set()

    def looks() -> bool:
        for file in share.glob("weft-host-*.summary"):
            summary = parse(file.read_bytes())
            if len(summary.processes) == 2:
                told.add(summary.sequence)
        return len(told) >= 4

    until(looks, "no summary tells of both processes")


def collect(share: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Judges the summaries in a share for five intervals."""
    words = ("--share", str(share), "--collect", "--interval", "0.3", "--count", "5")
    command = weft_command("diagnose", "--live", *words, *more)
    clean = {k: v for k, v in os.environ.items() if k != "WEFT_TRACE"}
    return subprocess.run(
        command,
        env=clean,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def found_by(
    done: subprocess.CompletedProcess[str],
) -> subprocess.CompletedProcess[str] | None:
    """The run if it found the stopped rank; None if that was not in the summaries yet."""
    assert done.returncode in (0, 1), done.stderr
    return done if ": non_communication_hang: rank 3, " in done.stdout else None


def test_live__a_healthy_job_has_no_findings(tmp_path: Path) -> None:
    traces = str(tmp_path / "traces")
    with exchanging(tmp_path, WEFT_TRACE=traces):
        words = ("--interval", "0.3", "--count", "8", "--json", "-")
        done = weft("diagnose", "--live", traces, *words, where=tmp_path)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    certain = [one for one in found if one["event"] == "finding"]
    # Whoever pauses processes beside the tests makes true findings of hangs.
    of_pauses = ("non_communication_hang", "communication_hang")
    assert all(one["class"] in (*OF_LOAD, *of_pauses) for one in certain), done.stderr
    assert done.returncode == bool(certain)
    assert ": 2 ranks, " in done.stderr
    assert "Traceback" not in done.stderr


def test_live__a_stopped_process_is_told_to_be_stopped(tmp_path: Path) -> None:
    with (
        exchanging(tmp_path, WEFT_TRACE=str(tmp_path / "traces")) as (_, partner),
        diagnosing(tmp_path, "--share", str(tmp_path / "share"), "--collect") as process,
    ):
        until_both_ran(tmp_path / "share")
        with stopped(partner.pid):
            # A shorter pause, for which load is to blame, may have been found before.
            found = until(lambda: of_rank_3(tmp_path, "non_communication_hang", STOPPED))
        until(lambda: found["incident"] in [one["incident"] for one in verdicts(tmp_path, "ended")])
        status, err = ended(process, tmp_path)
        assert (status, "Traceback" in err) == (1, False)


def test_live__a_killed_process_has_crashed(tmp_path: Path) -> None:
    with (
        exchanging(tmp_path, WEFT_TRACE=str(tmp_path / "traces")) as (_, partner),
        diagnosing(
            tmp_path,
            "--share",
            str(tmp_path / "share"),
            "--collect",
            "--act",
            "--on-finding",
            f"cat >> {tmp_path}/ran.json",
        ) as process,
    ):
        until_both_ran(tmp_path / "share")
        partner.kill()
        until(lambda: of_rank_3(tmp_path, "crash"))
        # A pause, for which load is to blame, may have been found before.
        until(lambda: "crash" in ran(tmp_path))
        shared = json.loads(_lines(tmp_path / "share" / "verdicts.jsonl")[-1])
        assert shared["weft_verdict"] == 1
        status, err = ended(process, tmp_path)
        assert (status, "Traceback" in err) == (1, False)
    assert ran(tmp_path).count("crash") == 1


def ran(where: Path) -> list[str]:
    """The classes of the findings that the command was run for."""
    file = where / "ran.json"
    return [json.loads(one)["class"] for one in _lines(file)] if file.exists() else []


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def sequence(share: Path) -> int:
    """The number of the last summary in the share; 0: there is none."""
    return max((parse(one.read_bytes()).sequence for one in share.glob("*.summary")), default=0)


def until_more(share: Path, many: int) -> None:
    """Waits for `many` more intervals."""
    since = sequence(share)
    until(lambda: sequence(share) >= since + many)


def of_straggler(where: Path, event: str) -> list[dict[str, Any]]:
    """Verdicts that rank 2 slows the job, alone or with other ranks of this busy host."""
    lines = _lines(where / "verdicts.json")
    found = [one for one in map(json.loads, lines) if one["event"] == event]
    return [
        one
        for one in found
        if one["class"] == "non_communication_slow" and 2 in one["place"]["ranks"]
    ]


def provoked(where: Path, share: Path) -> list[dict[str, Any]]:
    """Makes rank 2 late until that is found.

    A rule that compares a rank with its past may miss it for load at the moment when it begins, so
    the fault begins anew in that case.
    """
    for _ in range(8):
        until_more(share, 20)
        (where / "slow").touch()
        for _ in range(20):
            until_more(share, 2)
            if found := of_straggler(where, "finding"):
                return found
        (where / "slow").unlink()
    raise AssertionError("rank 2 was never found")


@pytest.mark.long
def test_live__a_straggler_is_one_incident_while_it_lasts(tmp_path: Path) -> None:
    """A ring of four ranks, one of which sleeps in each step for a while."""
    share = tmp_path / "share"
    with (
        ring(tmp_path, ranks=4, slow=2),
        diagnosing(tmp_path, "--share", str(share), "--collect") as process,
    ):
        until(lambda: share.exists() and sequence(share))
        opened = {one["incident"] for one in provoked(tmp_path, share)}
        until_more(share, 40)  # only slow iterations are left in its history
        assert of_straggler(tmp_path, "ended") == []
        (tmp_path / "slow").unlink()
        until(lambda: opened <= {one["incident"] for one in of_straggler(tmp_path, "ended")})
        status, err = ended(process, tmp_path)
    assert (status, "Traceback" in err) == (1, False)
    told = [json.loads(one) for one in _lines(tmp_path / "verdicts.json")]
    for number in {one["incident"] for one in told}:
        events = [one["event"] for one in told if one["incident"] == number]
        assert events == list(dict.fromkeys(events))  # it never flaps


def test_live__hosts_meet_through_a_share(tmp_path: Path) -> None:
    share = tmp_path / "share"
    with (
        exchanging(tmp_path, WEFT_TRACE=str(tmp_path / "traces")) as (_, partner),
        diagnosing(tmp_path, "--share", str(share)) as agent,
    ):
        until_both_ran(share)
        (share / "weft-host-bad.summary").write_bytes(b"PK\3\4 truncated")
        with stopped(partner.pid):
            done = until(lambda: found_by(collect(share, "--on-finding", "exit 1")))
        assert ended(agent, tmp_path)[0] == 0
    assert ": non_communication_hang: rank 3, confidence 99 %\n" in done.stdout
    assert done.stderr.count("bad.summary is left out: the file is damaged or incomplete") == 1
    assert ": exit 1 (dry run: --act runs it)" in done.stderr


def test_live__a_share_that_goes_away_is_one_line(tmp_path: Path) -> None:
    share = tmp_path / "share"
    with (
        exchanging(tmp_path, WEFT_TRACE=str(tmp_path / "traces")),
        diagnosing(tmp_path, "--share", str(share), "--collect") as process,
    ):
        until(lambda: list(share.glob("weft-host-*.summary")))
        share.rename(tmp_path / "elsewhere")
        gone = f"{share} is gone, or cannot be read: no host is judged until it is back"
        until(lambda: gone in (tmp_path / "stderr").read_text())
        (tmp_path / "elsewhere").rename(share)
        known = {one.name: one.stat().st_mtime_ns for one in share.glob("*.summary")}
        until(
            lambda: {one.name: one.stat().st_mtime_ns for one in share.glob("*.summary")} != known
        )
        status, err = ended(process, tmp_path)
    assert status in (0, 1)
    assert err.count(gone) == 1
    assert "Traceback" not in err
    assert ": 2 ranks, " in err
    # A busy machine may make a rank late, which is a verdict.
    names = {one.name.partition("-")[0] for one in share.iterdir()}
    assert names - {"verdicts.jsonl"} == {"weft"}


def test_live__a_share_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    share = tmp_path / "share"
    file = file_of(share, socket.gethostname(), tag_of(tmp_path / "traces"))
    (file / "in the way").mkdir(parents=True)
    with exchanging(tmp_path, WEFT_TRACE=str(tmp_path / "traces")):
        words = ("--share", str(share), "--interval", "0.2", "--count", "4")
        done = weft("diagnose", "--live", str(tmp_path / "traces"), *words, where=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count(f"cannot write a summary into {share}: Is a directory\n") == 1
    assert not list(share.glob(".*.new"))


def test_live__a_second_collector_says_so_and_runs_nothing(tmp_path: Path) -> None:
    share = tmp_path / "share"
    with (
        exchanging(tmp_path, WEFT_TRACE=str(tmp_path / "traces")) as (_, partner),
        diagnosing(tmp_path, "--share", str(share), "--collect") as first,
    ):
        until_both_ran(share)
        with stopped(partner.pid):
            until(lambda: verdicts(tmp_path, "finding"))
            command = ("--act", "--on-finding", f"touch {tmp_path}/ran")
            done = until(lambda: found_by(collect(share, *command)))
        assert ended(first, tmp_path)[0] == 1
    assert done.stderr.count("another collector judges this share (process ") == 1
    assert not (tmp_path / "ran").exists()


def test_live__ctrl_c_ends_it_and_its_command(tmp_path: Path) -> None:
    share = str(tmp_path / "share")
    act = ("--act", "--on-finding", f"echo > {tmp_path}/ran; sleep 600")
    with (
        exchanging(tmp_path, WEFT_TRACE=str(tmp_path / "traces")) as (_, partner),
        diagnosing(tmp_path, "--share", share, "--collect", *act) as process,
    ):
        until_both_ran(tmp_path / "share")
        with stopped(partner.pid):
            until((tmp_path / "ran").exists)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        err = (tmp_path / "stderr").read_text()
    assert process.returncode == 130
    assert "the command was killed, as diagnosis ends" in err
    assert "Traceback" not in err


def test_live__serves_verdicts_to_prometheus(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with (
        exchanging(tmp_path, WEFT_TRACE=str(tmp_path / "traces")),
        diagnosing(tmp_path, "--listen", "127.0.0.1:0") as process,
    ):
        found = until(lambda: re.search(r"serving (.*)\n", (tmp_path / "stderr").read_text()))
        address = found[1]

        def ranks() -> bool:
            with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
                return "weft_diagnosis_ranks 2.0" in answer.read().decode()

        until(ranks)
        assert ended(process, tmp_path)[0] in (0, 1)


def test_live__usage_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for arguments, words in (
        (["--live", str(tmp_path / "no" / "where")], "is not a folder"),
        (["--live", str(tmp_path), "--collect"], "--collect needs --share"),
        (["--live", str(tmp_path), "--act"], "--act needs --on-finding"),
        (
            ["--live", str(tmp_path), "--share", str(tmp_path), "--on-finding", "x"],
            "--on-finding is for the host that judges",
        ),
        (["--live", str(tmp_path), "--share", str(file / "x")], "--share: cannot make"),
        (["--live", str(tmp_path), "--listen", "x"], "write HOST:PORT"),
        ([str(tmp_path), "--share", str(tmp_path)], "--share needs --live"),
        (["--live"], "give it, or set WEFT_TRACE"),
        ([], "Missing argument 'DIR'"),
    ):
        env = {k: v for k, v in os.environ.items() if k != "WEFT_TRACE"}
        more = ["--count", "1"] if "--live" in arguments else []
        done = subprocess.run(
            weft_command("diagnose", *arguments, *more),
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 2, arguments
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
