"""Tests that weft transfers data through a lab over all paths, with loss and with a cut path."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.lab.support import ROOT, grown, reason_to_skip, unique
from tests.waiting import PATIENCE_S
from transport import native
from transport.lab import Lab, LabModel
from transport.trace import matrix_of, open_store

pytestmark = pytest.mark.namespaces

MESSAGE_BYTES = 1 << 20
MESSAGES = 16
SERVER = f"""
from transport import Endpoint
with Endpoint() as endpoint, endpoint.listen(port=7000, open=True) as listener:
    print("ready", endpoint.devices[0].name, flush=True)
    with listener.accept(timeout_s=240) as connection:
        for number in range({MESSAGES}):
            assert connection.recv({MESSAGE_BYTES}) == bytes([number]) * {MESSAGE_BYTES}
        connection.send(b"all there")
"""
CLIENT = f"""
import sys, time
from transport import Endpoint
with Endpoint() as endpoint, endpoint.connect(sys.argv[1], 7000, timeout_s=240) as connection:
    handles = []
    for number in range({MESSAGES}):
        handles.append(connection.isend(bytes([number]) * {MESSAGE_BYTES}))
        if number == {MESSAGES} // 4:
            handles[0].wait(timeout_s=240)
            print("under way", flush=True)
            input()
    for handle in handles:
        handle.wait(timeout_s=240)
    assert connection.recv(100) == b"all there"
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with Lab(LabModel(), name=unique("weft")) as one:
        yield one


@pytest.fixture(params=["udp", "xdp"])
def datapath(request: pytest.FixtureRequest) -> str:
    if request.param == "xdp" and (complaint := native.why_no_xdp()):
        pytest.skip(complaint)
    return str(request.param)


def start(
    lab: Lab, host: str, script: str, *words: str, trace: Path | None = None, **variables: str
) -> "subprocess.Popen[str]":
    clean = clean_environment()
    return lab.popen(
        host,
        [sys.executable, "-c", script, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=clean
        | {"WEFT_INTERFACES": "eth0", "WEFT_PATHS": "32", "WEFT_ENGINES": "1"}
        | ({} if trace is None else {"WEFT_TRACE": str(trace)})
        | variables,
    )


def move(lab: Lab, *, cut: str = "", trace: Path | None = None, **variables: str) -> None:
    """Sends all messages from host0 to host1, which compares every byte; cuts a link if `cut`."""
    processes = [start(lab, "host1", SERVER, trace=trace, **variables)]
    try:
        assert processes[0].stdout is not None
        assert processes[0].stdout.readline() == "ready eth0\n"
        words = (CLIENT, lab.address("host1"))
        processes.append(start(lab, "host0", *words, trace=trace, **variables))
        client = processes[1]
        assert client.stdout is not None
        assert client.stdout.readline() == "under way\n"
        if cut:
            lab.cut(cut)
        output, _ = client.communicate("\n", timeout=PATIENCE_S)
        assert (client.returncode, output) == (0, "done\n")
        assert processes[0].wait(timeout=PATIENCE_S) == 0
    finally:
        for one in processes:
            one.kill()
            one.communicate(timeout=PATIENCE_S)


def test_weft__takes_every_path_past_loss(lab: Lab, datapath: str) -> None:
    lab.set("leaf0-spine1", loss=0.05)
    # In turn over the paths: other policies avoid paths that are slow on a busy machine.
    growth = grown(lab, lambda: move(lab, WEFT_PATH_POLICY="round_robin", WEFT_DATAPATH=datapath))
    carried = [growth[f"leaf0>spine{i}"].bytes for i in range(4)]
    assert sum(carried) >= MESSAGES * MESSAGE_BYTES
    assert min(carried) > MESSAGE_BYTES // 8  # more than probes and the control connection
    assert growth["leaf0>spine1"].losses > 0
    lab.set("leaf0-spine1", loss=0.0)


def test_weft__damage_in_the_middle_is_repaired(lab: Lab, datapath: str) -> None:
    lab.set("leaf0-spine1", corruption=0.02)
    growth = grown(lab, lambda: move(lab, WEFT_PATH_POLICY="round_robin", WEFT_DATAPATH=datapath))
    assert growth["leaf0>spine1"].corrupted > 0
    lab.set("leaf0-spine1", corruption=0.0)


def test_weft__a_path_dies_and_all_arrives(lab: Lab, datapath: str) -> None:
    growth = grown(lab, lambda: move(lab, cut="leaf0-spine2", WEFT_DATAPATH=datapath))
    assert growth["leaf0>spine2"].cut_drops > 0
    lab.heal("leaf0-spine2")


def test_weft__a_trace_agrees_with_the_counters_of_the_interface(
    lab: Lab, tmp_path: Path, datapath: str
) -> None:
    """The kernel counts as many bytes as the trace has, with headers and resent segments."""
    lab.set("leaf0-spine1", loss=0.05)
    growth = grown(lab, lambda: move(lab, trace=tmp_path, WEFT_DATAPATH=datapath))
    lab.set("leaf0-spine1", loss=0.0)
    carried = growth["host0>leaf0"].bytes
    with open_store(tmp_path) as store:
        found = matrix_of(store)
        ((segments, resent),) = store.rows(
            "SELECT sum(segments), sum(resent) FROM stripes WHERE sends"
        )
    there = MESSAGES * MESSAGE_BYTES
    assert sorted(found.values.tolist()) == [len(b"all there"), there]
    assert resent > 0
    payload = there / (segments - resent)
    least = there + resent * payload * 0.5  # the last segment of a message is shorter
    headers = segments * (64 + 8 + 20 + 14)  # headers of weft, UDP, IPv4 and Ethernet
    # Acknowledgments, probes of 32 paths and the control connection add at most a tenth.
    assert least < carried < (there + resent * payload * 1.1 + headers) * 1.1
