"""Tests weft under limits on file descriptors: how many it uses and leaves free, and its errors."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.support import LOCAL, PATIENCE_S, ROOT, Log, line, running
from tests.environment import clean_environment
from transport import Endpoint
from transport.errors import OutOfDescriptorsError

ENGINES = 8  # each has 32 paths, so there are 256 sockets per device
PATHS = 32
LEFT_TO_PROGRAM = 64


def scarce(
    role: str, soft: int, hard: int, number: int = ENGINES, **variables: str
) -> subprocess.Popen[str]:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if allowed != resource.RLIM_INFINITY and allowed < hard:
        pytest.skip(f"the hard limit on descriptors is {allowed}")
    clean = clean_environment()
    return subprocess.Popen(
        [sys.executable, "-m", "tests.api.scarce", role, str(soft), str(hard), str(number)],
        cwd=ROOT,
        env=clean | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(role: str, soft: int, hard: int, number: int = ENGINES) -> tuple[dict[str, Any], str]:
    """Runs a child; returns the JSON line that it prints, and its log."""
    with running(scarce(role, soft, hard, number)) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        facts: dict[str, Any] = json.loads(out)
        return facts, err


def test_limit__soft_one_is_raised_and_all_paths_are_used() -> None:
    facts, log = told("transfer", 256, 4096)
    assert facts["moved"]
    assert f" {PATHS} paths" in facts["summary"]
    assert facts["opened"] > ENGINES * PATHS
    assert facts["soft"] == 4096
    assert "raised the soft limit on file descriptors from 256 to 4096" in log
    assert "warning" not in log


def test_limit__that_is_high_enough_stays_as_it_is() -> None:
    facts, log = told("transfer", 1024, 4096)
    assert (facts["moved"], facts["soft"]) == (True, 1024)
    assert "limit" not in log


def test_table__has_room_for_all_paths_before_the_first_connection() -> None:
    """Linux takes long to enlarge the table of a process with threads."""
    facts, _ = told("transfer", 1024, 4096)
    assert facts["table"] >= 1024 > facts["opened"]
    assert told("transfer", 4096, 4096, 32)[0]["table"] >= 32 * PATHS


def test_limit__hard_one_costs_paths_with_a_line_and_leaves_room() -> None:
    facts, log = told("transfer", 256, 256)
    assert facts["moved"]
    paths = int(facts["summary"].split(" paths")[0].split()[-1])
    assert 1 <= paths < PATHS
    assert facts["left"] >= LEFT_TO_PROGRAM
    warnings = [each for each in log.splitlines() if "warning" in each]
    assert len(warnings) == 1, log
    for part in (
        f"using {paths} paths instead of {PATHS}",
        "the limit is 256",
        "ulimit -n",
        "LimitNOFILE=",
    ):
        assert part in warnings[0]


@pytest.mark.parametrize("limit", [70, 80, 100, 120, 150, 200, 300])
def test_limit__whatever_it_is_paths_get_what_the_program_does_not_need(limit: int) -> None:
    facts, _ = told("transfer", limit, limit)
    assert facts["moved"]
    assert facts["left"] >= min(LEFT_TO_PROGRAM, limit // 4)


def test_limit__is_shared_by_all_devices() -> None:
    if "lo" not in Path("/proc/net/if_inet6").read_text():
        pytest.skip("lo has no IPv6 address, and the second device is there")
    facts, log = told("devices", 200, 200, 2)
    assert facts["moved"] == 2
    assert facts["left"] >= 200 // 4
    assert f"paths instead of {PATHS}" in log
    assert "2 engines on 2 devices with all paths take 155" in log


def test_limit__too_low_for_one_path_is_an_error_that_names_it() -> None:
    facts, _ = told("start", 40, 40)
    assert facts["kind"] == "OutOfDescriptorsError"
    assert facts["grown"] == 0
    for part in (
        "8 engines on 1 device with one path would take 46 file descriptors",
        "the limit is 40",
        "10 are left to the program",
        "ulimit -n",
        "WEFT_ENGINES",
    ):
        assert part in facts["text"]


def test_limit__counts_what_other_endpoints_will_open() -> None:
    """Each endpoint opens 27 descriptors when it is made, and 8 sockets with its first peer."""
    facts, _ = told("endpoints", 200, 200, 2)
    assert facts["kind"] == "OutOfDescriptorsError"
    assert facts["made"] >= 2
    assert facts["moved"] == facts["made"]
    assert facts["left"] >= 200 // 4


def test_limit__forked_child_gets_the_old_one_back() -> None:
    facts, _ = told("forks", 256, 4096)
    assert facts["soft"] == 4096
    assert facts["in_child_modulo_251"] == 256 % 251


def test_limit__forked_child_counts_no_promise_of_its_parent() -> None:
    facts, _ = told("fork_paths", 160, 160, 2)
    assert ", 32 paths," in facts["summary"]


def test_start__that_fails_half_way_leaves_nothing_open() -> None:
    facts, _ = told("half_way", 4096, 4096)
    # One more descriptor: weft keeps /dev/null open after its first socket, for forked children.
    assert facts["opened"][-1] == facts["opened"][0] <= facts["before"] + 1
    assert facts["running"][-1] <= facts["running"][0]


@pytest.mark.parametrize(
    ("soft", "hard", "state", "said"),
    [
        (256, 4096, "ok", "wanted for all paths, soft limit 256, raised at start up to 4096"),
        (256, 256, "limited", "hard limit 256: fewer paths will be opened"),
        (48, 48, "BROKEN", "46 needed for one path, hard limit 48"),
    ],
)
def test_doctor__tells_what_the_limit_will_do(soft: int, hard: int, state: str, said: str) -> None:
    found, _ = told("doctor", soft, hard)
    assert found["subject"] == "descriptors"
    assert found["state"] == state
    assert said in found["found"]
    assert ("ulimit -Hn" in found["remedy"]) == (state != "ok")


def test_dial__without_a_descriptor_says_so() -> None:
    facts, _ = told("dials", 200, 200)
    assert facts["kind"] == "OutOfDescriptorsError"
    assert "Too many open files" in facts["text"]
    assert "ulimit -n" in facts["text"]
    assert "no answer" not in facts["text"]


@pytest.mark.parametrize("secret", [False, True])
def test_accept__without_a_descriptor_is_said_at_both_ends(secret: bool, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "secret").chmod(0o600)
    file = str(tmp_path / "secret") if secret else ""
    with (
        running(scarce("accepts", 200, 200, 0, WEFT_SECRET_FILE=file)) as peer,
        Endpoint(**LOCAL, secret_file=file) as endpoint,
    ):
        assert peer.stdin is not None
        handle = bytes.fromhex(json.loads(line(peer))["handle"])
        for _ in range(3):  # each refusal frees the descriptor that is reserved for refusals
            with pytest.raises(OutOfDescriptorsError, match=r"refused: .*Too many open") as said:
                endpoint.connect(handle, timeout_s=PATIENCE_S)
            assert "the limit is 200" in str(said.value)
        peer.stdin.write("\n")
        peer.stdin.flush()
        failure = json.loads(line(peer))
        assert failure["kind"] == "OutOfDescriptorsError"
        assert "cannot accept peers that have connected: Too many open files" in failure["text"]
        peer.stdin.write("\n")
        peer.stdin.flush()
        assert json.loads(line(peer))["ready"]
        with endpoint.connect(handle, timeout_s=PATIENCE_S) as connection:
            connection.send(b"hello")
            assert json.loads(line(peer))["received"] == "hello"


def test_accept__without_a_descriptor_for_a_path_is_said() -> None:
    """The peer's control socket takes the only free descriptor, so that none is left for a path."""
    with running(scarce("accepts", 200, 200, 1)) as peer, Endpoint(**LOCAL) as endpoint:
        handle = bytes.fromhex(json.loads(line(peer))["handle"])
        said = r"refused: cannot create a UDP socket for a path: Too many open files"
        with pytest.raises(OutOfDescriptorsError, match=said):
            endpoint.connect(handle, timeout_s=PATIENCE_S)


def test_accept__with_few_descriptors_has_few_paths_and_a_line() -> None:
    with running(scarce("accepts", 200, 200, 3)) as peer, Endpoint(**LOCAL) as endpoint:
        assert peer.stdin is not None
        handle = bytes.fromhex(json.loads(line(peer))["handle"])
        with endpoint.connect(handle, timeout_s=PATIENCE_S) as connection:
            peer.stdin.write("\n")
            peer.stdin.flush()
            connection.send(b"hello")
            assert json.loads(line(peer))["received"] == "hello"
        text = Log(peer).take(f"engine 0 opened fewer than {PATHS} paths to a peer: ")
        assert "Too many open files" in text
