"""Tests that commands which look at a host leave its jobs alone, and say what is wrong.

They run with the environment of a job, whose trace and recording are set.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S
from transport.cli.settings import trace_complaint
from transport.host import probes

SCRIPT = "import sys; from transport.cli import main; sys.argv[0] = 'weft'; main()"


def weft(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        env=os.environ | {"WEFT_INTERFACES": "lo"} | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def as_nobody(trace: str) -> str:
    """What a user without rights is told of a trace folder; "": nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            os.setgroups([])
            os.setgid(65_534)
            os.setuid(65_534)
            said = trace_complaint(trace).encode()
        finally:
            os.write(writer, said)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text


@pytest.mark.parametrize("words", [("doctor",), ("run", "--", "true")])
def test_beside__recordings_and_traces_of_a_job_stay(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    recording, traces = tmp_path / "job.weftrec", tmp_path / "traces"
    recording.write_bytes(bytes(100_000))
    traces.mkdir()
    weft(*words, WEFT_RECORD_FILE=str(recording), WEFT_TRACE=str(traces))
    assert recording.stat().st_size == 100_000
    assert list(traces.iterdir()) == []


def test_run__a_trace_folder_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.touch()
    done = weft("run", "--", "true", WEFT_TRACE=str(file))
    assert (done.returncode, f"{file} is not a folder" in done.stderr) == (2, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_run__a_trace_folder_that_the_user_may_not_make(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for one in (tmp_path, *tmp_path.parents):
        if one.stat().st_uid == os.geteuid() and one.is_relative_to("/tmp/pytest-of-root"):
            one.chmod(0o755)
    assert f"this user may not enter {closed}" in as_nobody(str(closed / "of" / "a" / "job"))
    assert f"this user may not write in {tmp_path}" in as_nobody(str(tmp_path / "trace"))
    assert "there is no folder" in as_nobody("/nowhere/trace")
    assert as_nobody("/tmp/trace-of-a-job") == ""


def test_run__says_that_nccl_would_find_no_interface() -> None:
    done = weft("run", "--", "true", NCCL_SOCKET_IFNAME="ens99")
    assert done.returncode == 0
    assert "NCCL_SOCKET_IFNAME=ens99 names no interface of this host" in done.stderr
    assert "NCCL_SOCKET_IFNAME" not in weft("run", "--", "true", NCCL_SOCKET_IFNAME="lo").stderr


@pytest.mark.parametrize(
    ("names", "unknown"),
    [("", False), ("lo", False), ("^ens99", False), ("l", False), ("=l", True), ("x,lo", False)],
)
def test_socket_interface__is_looked_up_as_nccl_does(names: str, unknown: bool) -> None:
    assert bool(probes.unknown_socket_interface(names)) == unknown


def test_doctor__a_bad_setting_names_its_variable() -> None:
    done = weft("doctor", WEFT_SECRET_FILE="/nowhere/secret")
    assert "openssl rand -hex 32" in done.stdout
    done = weft("doctor", WEFT_INTERFACES="nowhere0")
    assert "change or unset WEFT_INTERFACES" in done.stdout
    done = weft("doctor", WEFT_INTERFACES="caf\udce9")
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr


def test_doctor__addresses_that_no_other_host_reaches_are_limited() -> None:
    (line,) = (one for one in weft("doctor").stdout.splitlines() if one.startswith("devices "))
    assert "limited" in line
    assert "other hosts cannot reach" in line


def test_ports__that_are_taken_are_counted() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        only = range(port, port + 1)
        assert probes.free_ports("127.0.0.1", socket.SOCK_DGRAM, only, 1) == 0
    assert probes.free_ports("127.0.0.1", socket.SOCK_DGRAM, range(1), 1) == 1
