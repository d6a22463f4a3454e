"""Tests that a connection survives while one path works; the others are cut for long.

`make test` cuts some subsets of four paths for some seconds, with a peer silence of 3 s.
LAB_CUT_S=60 cuts all subsets of one, two and three paths for a minute, with the default silence.
"""

import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.lab.support import ROOT, reason_to_skip, unique
from tests.sample import sampled
from tests.waiting import PATIENCE_S, until
from transport.lab import Lab, LabModel

pytestmark = pytest.mark.namespaces

LONG_S = float(os.environ.get("LAB_CUT_S", "0"))
CUT_S = LONG_S or 6.0
KNOBS = {} if LONG_S else {"WEFT_PEER_TIMEOUT": "silence=3s,dead=3s"}
LINKS = [f"leaf0-spine{i}" for i in range(4)]
SUBSETS = [subset for count in (1, 2, 3) for subset in itertools.combinations(LINKS, count)]
# Cut each single link, because the control socket uses one of them, and some larger subsets.
CHOSEN = SUBSETS if LONG_S else [*SUBSETS[:4], SUBSETS[5], SUBSETS[11]]
NAMES = ["+".join(links) for links in CHOSEN]
# Those that `make test` runs: the first single link, and the largest subset.
SAMPLE = (NAMES[0], NAMES[-1])

SERVER = """
import threading
from transport import Endpoint
def serve(connection):
    memory = bytearray(1 << 20)
    while True:
        count = connection.recv_into(memory)
        connection.send(memoryview(memory)[:count])
with Endpoint() as endpoint, endpoint.listen(port=7000, open=True) as listener:
    print("ready", flush=True)
    for connection in listener:
        threading.Thread(target=serve, args=[connection], daemon=True).start()
"""
# One connection always has a message in flight, another only waits; "dial" opens a third one.
CLIENT = """
import os, sys, threading, time
from transport import Endpoint
with Endpoint() as endpoint:
    busy, idle = (endpoint.connect(sys.argv[1], 7000, timeout_s=240) for _ in range(2))
    waiting = idle.irecv_into(awaited := bytearray(10))
    rounds, ended = 0, threading.Event()
    def exchange():
        global rounds
        data = os.urandom(200_000)
        while not ended.is_set():
            busy.send(data)
            assert busy.recv(len(data)) == data
            rounds += 1
            time.sleep(0.01)  # the other connections want a turn
    thread = threading.Thread(target=exchange)
    thread.start()
    for word in sys.stdin:
        if word.strip() == "dial":
            with endpoint.connect(sys.argv[1], 7000, timeout_s=240) as fresh:
                fresh.send(b"x" * 100_000)
                assert fresh.recv(100_000) == b"x" * 100_000
            print("dialled", flush=True)
        elif word.strip() == "rounds":
            assert thread.is_alive()
            idle.check()
            print(rounds, endpoint.counters().peers_rejoined, flush=True)
        else:
            ended.set()
            thread.join(60)
            idle.send(b"at the end")
            waiting.wait(60)
            assert bytes(awaited) == b"at the end"
            print("whole", flush=True)
            break
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with Lab(LabModel(), name=unique("cuts")) as one:
        yield one


class Pair:
    """Runs server and client in the lab; sends commands to the client and reads its replies."""

    def __init__(self, lab: Lab, log: Path) -> None:
        self.log = log
        self.processes = [self._start(lab, "host1", SERVER)]
        assert self._line(self.processes[0]) == "ready"
        self.processes.append(self._start(lab, "host0", CLIENT, lab.address("host1")))

    def _start(self, lab: Lab, host: str, script: str, *words: str) -> "subprocess.Popen[str]":
        clean = clean_environment()
        own = {"WEFT_INTERFACES": "eth0", "WEFT_PATHS": "32", "WEFT_ENGINES": "1"}
        own["WEFT_LOG_LEVEL"] = "info"
        with (self.log if words else Path(os.devnull)).open("w") as log:
            return lab.popen(
                host,
                [sys.executable, "-c", script, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=clean | own | KNOBS,
            )

    def await_line(self, pattern: str) -> None:
        """Waits until a line of the client's log matches `pattern`."""
        until(
            lambda: re.search(pattern, self.log.read_text()),
            lambda: f"{pattern!r} is not in the log:\n{self.log.read_text()}",
        )

    @staticmethod
    def _line(process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        watchdog = threading.Timer(90, process.kill)
        watchdog.start()
        try:
            return process.stdout.readline().strip()
        finally:
            watchdog.cancel()

    def ask(self, word: str) -> str:
        client = self.processes[1]
        assert client.stdin is not None
        client.stdin.write(word + "\n")
        client.stdin.flush()
        return self._line(client)

    def rounds(self) -> int:
        return int(self.ask("rounds").split()[0])

    def end(self) -> None:
        for one in self.processes:
            one.kill()
            one.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("links", sampled(CHOSEN, NAMES, SAMPLE))
def test_cuts__a_connection_outlives_the_paths_it_has_lost(
    lab: Lab, links: Sequence[str], tmp_path: Path
) -> None:
    pair = Pair(lab, tmp_path / "log")
    try:
        before = pair.rounds()
        for link in links:
            lab.cut(link)
        try:
            time.sleep(CUT_S / 2)  # time for which the paths are cut
            until(lambda: pair.rounds() > before, "the connection does not continue")
            # A new connection uses the remaining path and does not wait for the cut paths.
            assert pair.ask("dial") == "dialled"
            halfway = pair.rounds()
            time.sleep(CUT_S / 2)  # the same again
            until(lambda: pair.rounds() > halfway, "the connection does not continue")
            pair.await_line(f"to {lab.address('host1')} (is|are) down: no reply arrives on")
        finally:
            for link in links:
                lab.heal(link)
        healed = pair.rounds()
        until(lambda: pair.rounds() > healed, "the connection does not continue")
        pair.await_line(f"to {lab.address('host1')} (is|are) up again after")
        pair.await_line("connected to ")
        assert pair.ask("end") == "whole"
    finally:
        pair.end()
