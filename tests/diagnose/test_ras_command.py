"""Tests `weft diagnose` on statuses of NCCL's RAS: in files, and of a fake service for --ras, as no
NCCL runs here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.diagnose.support import found_by, invoked
from tests.trace.ras import GREETING, all_reduces, comm, rank, status, text
from transport.cli import diagnose_ras
from transport.host import nccl_ras

LATER = "12:00:10"
STUCK = (all_reduces([5, 4]), all_reduces([5, 4], LATER))
SILENT, HALF, OLD, OTHER = "silent", "half", "old", "other"  # instead of a status


class FakeService:
    """Answers connections like NCCL's RAS, one with each of `answers`, then none."""

    def __init__(self, answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.said: list[bytes] = []
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for one in (self._listener, *self._open):
            one.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._open.append(peer)
            answer = self._answers.pop(0) if self._answers else SILENT
            if answer not in (SILENT, OTHER):
                self._answer(peer, answer)
            elif answer == OTHER:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n")

    def _answer(self, peer: socket.socket, answer: str) -> None:
        with peer.makefile("rb") as lines:
            for line in lines:
                self.said.append(line)
                if line.startswith(b"client protocol"):
                    peer.sendall(b"SERVER PROTOCOL 2\n")
                elif line.startswith(b"set format") and answer == OLD:
                    peer.sendall(b"ERROR: Unknown command\n")
                elif not line.startswith(b"verbose"):
                    peer.sendall(b"OK\n")
                else:
                    peer.sendall(answer.removeprefix(GREETING).encode())
                    break
        if answer != HALF:
            peer.shutdown(socket.SHUT_WR)


@contextmanager
def serving(*answers: str) -> Iterator[FakeService]:
    service = FakeService(answers)
    try:
        yield service
    finally:
        service.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose_ras, "APART_S", 0.0)
    monkeypatch.setattr(nccl_ras, "GREETING_S", 60.0)  # a busy machine answers late


def test_ras__a_running_job_is_asked_twice(tmp_path: Path) -> None:
    with serving(*STUCK) as service:
        file = tmp_path / "ras.json"
        done = invoked("diagnose", f"--ras=127.0.0.1:{service.port}", "--save-ras", file)
        lines = [b"client protocol 2\n", b"timeout 5\n", b"set format json\n", b"verbose status\n"]
        assert service.said == lines * 2
    assert done.exit_code == 1, done.output
    assert "non_communication_hang: rank 1" in done.output
    assert found_by("--with", file)["findings"][0]["certain"]  # what was saved says the same


def test_ras__the_address_of_the_environment_is_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(*STUCK) as service:
        monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{service.port}")
        assert invoked("diagnose", "--ras").exit_code == 1
    monkeypatch.setenv("NCCL_RAS_ADDR", "nonsense")
    assert nccl_ras.usual_address() == ("localhost", 28028)
    monkeypatch.setenv("NCCL_RAS_ADDR", "[::1]:99")
    assert nccl_ras.usual_address() == ("::1", 99)


def test_ras__a_process_that_does_not_answer_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nccl_ras, "GREETING_S", 1.0)
    with serving(SILENT, *[STUCK[0]] * 7) as service:
        done = invoked("diagnose", f"--ras=127.0.0.1:{service.port}")
    assert "non_communication_hang: rank 1" in done.output


def test_ras__if_the_job_ends_meanwhile_one_status_counts() -> None:
    with serving(STUCK[0], OTHER) as service:
        done = invoked("diagnose", f"--ras=127.0.0.1:{service.port}")
    assert done.exit_code == 4
    assert "suspicion: non_communication_hang: rank 1" in done.output
    assert "RAS was asked again in vain, so there is one status only" in done.output


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (SILENT, "took 2 connections and answered none"),
        (OTHER, "is no RAS service of NCCL: it answered 'HTTP/1.1 400 Bad Request'"),
        (OLD, "NCCL gives JSON since 2.28"),
        (HALF, "did not answer in time"),
    ],
)
def test_ras__a_service_without_a_status_is_an_error(
    answer: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer == SILENT:
        monkeypatch.setattr(nccl_ras, "GREETING_S", 0.3)
    monkeypatch.setattr(nccl_ras, "ANSWER_S", 0.3)
    monkeypatch.setattr(nccl_ras, "TRIES", 2)
    with serving(*[answer] * 2) as service:
        done = invoked("diagnose", f"--ras=127.0.0.1:{service.port}")
    assert done.exit_code == 2
    assert why in done.output


def test_ras__where_nothing_listens_the_error_says_how_to_enable_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done = invoked("diagnose", f"--ras=127.0.0.1:{port}")
    assert done.exit_code == 2
    assert f"nothing listens at 127.0.0.1:{port}: RAS is part of NCCL since 2.24" in done.output
    assert "NCCL_RAS_ENABLE=0" in done.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--ras", "/scratch/job"], "the folder of a trace before --ras"),
        (["--ras=10.0.0.1:99999"], "the port must be a number"),
        (["--save-ras", "x.json", "DIR"], "--save-ras needs --ras"),
        (["--live", "--ras=localhost"], "are of whole jobs, not --live"),
        (["--lost-time", "--ras=localhost"], "Missing argument 'DIR'"),
        ([], "Missing argument 'DIR'"),
    ],
)
def test_ras__wrong_words_are_refused(words: list[str], why: str) -> None:
    done = invoked("diagnose", *words)
    assert done.exit_code == 2
    assert why in done.output


# Statuses in files.


def saved(folder: Path, *texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for at, one in enumerate(texts):
        (folder / f"ras-{at}.json").write_text(one)
    return folder


def test_command__statuses_are_judged_without_a_trace(tmp_path: Path) -> None:
    folder = saved(tmp_path / "ras", all_reduces([5, 4]), all_reduces([5, 4], LATER))
    for words in ([folder], ["--with", folder]):
        done = invoked("diagnose", *words)
        assert done.exit_code == 1, done.output
        assert "non_communication_hang: rank 1, confidence" in done.output
        assert "query:" not in done.output  # there are no tables to be asked
    found = found_by(folder)
    assert (found["ranks"], found["findings"][0]["query"]) == (2, "")


def test_command__statuses_of_a_job_that_goes_on_end_with_4(tmp_path: Path) -> None:
    done = invoked("diagnose", saved(tmp_path / "ras", all_reduces([5, 5])))
    assert done.exit_code == 4
    assert "not judged: 2 ranks" in done.output
    assert "lacks:    one status of RAS shows a moment: ask again" in done.output


def test_command__impossible_communicators_are_noted(tmp_path: Path) -> None:
    bad = comm(0x5, [rank(900, 0, {})])
    folder = saved(tmp_path / "ras", text(status([bad, comm(0x6, [rank(0, 0, {"AllReduce": 1})])])))
    assert (
        "left out, as no job has it: a rank of communicator 0x5 is 900"
        in invoked("diagnose", folder).output
    )


def test_command__text_for_people_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ras.txt"
    file.write_text("NCCL version 2.28.9 compiled with CUDA 13.0\n\nJob summary\n===========\n")
    done = invoked("diagnose", "--with", file)
    assert done.exit_code == 2
    assert "record JSON with ncclras -f json -v > ras.json" in done.output
