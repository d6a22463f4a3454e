"""Tests what `weft doctor --peer` says of hosts with another version of weft."""

from __future__ import annotations

import pytest

from tests.host.support import FINE, report, serving, start, states
from tests.waiting import PATIENCE_S
from transport.lab import Lab

pytestmark = pytest.mark.namespaces

# A fake of a weft doctor of another version with the same control protocol.
UNLIKE = """
from transport import Endpoint
with Endpoint() as endpoint, endpoint.listen(port=7117, open=True) as listener:
    print("listens", flush=True)
    with listener.accept(timeout_s=240) as connection:
        connection.recv(9_000, timeout_s=240)
        connection.send(b'{"Hello": {"version": "9.9.9"}}', timeout_s=240)
        try:
            connection.recv(9_000, timeout_s=240)
        except OSError:
            pass
"""


def test_two_hosts__a_doctor_that_speaks_otherwise_is_a_matter_of_versions(lab: Lab) -> None:
    unlike = start(lab, "host1", UNLIKE)
    try:
        assert unlike.stdout is not None
        assert unlike.stdout.readline() == "listens\n"
        _, found = report(lab)
    finally:
        unlike.kill()
        unlike.communicate(timeout=PATIENCE_S)
    assert found["versions"]["state"] == "BROKEN", found
    assert (
        "speaks otherwise: Hello of weft 9.9.9: expected the fields" in found["versions"]["found"]
    )
    assert states(found, "data paths", "MTU", "rate") == {"not judged"}


# A fake of a weft with an older control protocol: the header of a frame is the same in all versions
# (native/control/frames.cc). It answers each first frame with an empty one of its own version.
OLDER = """
import socket, struct, sys
with socket.create_server((sys.argv[1], 7117)) as listener:
    print("listens", flush=True)
    for _ in range(4):
        with listener.accept()[0] as peer:
            magic = peer.recv(16, socket.MSG_WAITALL)[:4]
            peer.sendall(magic + struct.pack("<HHII", 5, 1, 0, 0))
            while peer.recv(4096):
                pass
"""
OLDER_DIALS = """
import socket, struct, sys
with socket.create_connection((sys.argv[1], 7117), timeout=240) as peer:
    peer.sendall(b"WFTC" + struct.pack("<HHII", 5, 1, 0, 0))
    header = peer.recv(16, socket.MSG_WAITALL)
    print(struct.unpack("<HHII", header[4:])[0], peer.recv(4096), flush=True)
"""


def test_two_hosts__an_older_version_is_named_at_both_ends(lab: Lab) -> None:
    older = start(lab, "host1", OLDER, lab.address("host1"))
    try:
        assert older.stdout is not None
        assert older.stdout.readline() == "listens\n"
        status, found = report(lab)
    finally:
        older.kill()
        older.communicate(timeout=PATIENCE_S)
    assert (status, found["versions"]["state"]) == (1, "BROKEN"), found
    assert "the peer uses version 5 of the control protocol" in found["versions"]["found"]
    assert "the same version of weft on both hosts" in found["versions"]["remedy"]
    assert states(found, "secret", "data paths", "MTU", "rate") == {"not judged"}
    with serving(lab):
        dials = start(lab, "host0", OLDER_DIALS, lab.address("host1"))
        said, _ = dials.communicate(timeout=PATIENCE_S)
        assert "the peer uses version 5" in said
        _, found = report(lab)  # the server serves those of its own version as before
        assert states(found, "control port", "versions", "data paths") <= FINE, found
