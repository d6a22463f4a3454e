"""Tests `weft doctor` with settings that are wrong: each is listed, and hides nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S
from transport import native
from transport.cli import settings
from transport.errors import InvalidArgumentError

SCRIPT = "import sys; from transport.cli import main; sys.argv[0] = 'weft'; main()"
USED = {"uses", "devices", "left out", "ports", "uses policies"}
pytestmark = pytest.mark.skipif(
    not native.PLUGIN_PATH.exists(), reason="the native code is not built"
)


def doctor(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "NCCL_"))}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, "doctor", *words],
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def lines(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The findings of --json by subject, of which each has one."""
    found = json.loads(done.stdout)
    by_subject = {one["subject"]: one for one in found}
    assert len(by_subject) == len(found)
    return by_subject


WRONG = {
    "WEFT_SECRET_FILE": "/nowhere/secret",
    "WEFT_PATH": "3",
    "WEFT_PORT_BASE": "abc",
    "WEFT_RTO": "min=3s,max=1s",
    "WEFT_INTERFACES": "nowhere0",
    "WEFT_WINDOW_POLICY": "nowhere",
    "WEFT_LOSS_POLICY": "/nowhere.so",
    "WEFT_DSCP": "caf\udce9",
    "NCCL_SOCKET_IFNAME": "nowhere1",
    "WEFT_TRACE": "/nowhere/traces",
    "WEFT_TUNE": "/nowhere/rules",
    "WEFT_POLICY_DIRECTORY": "/nowhere",
}


def test_doctor__lists_every_wrong_setting_with_its_remedy() -> None:
    done = doctor("--json", "-", WEFT_PATHS="8", **WRONG)
    found = lines(done)
    assert done.returncode == 1
    assert {name for name in found if name.startswith(("WEFT_", "NCCL_"))} == set(WRONG)
    for name in WRONG:
        assert found[name]["state"] == "BROKEN"
        assert name in found[name]["found"]
        assert found[name]["remedy"]
    assert "set WEFT_PATHS instead" in found["WEFT_PATH"]["remedy"]
    assert "openssl rand -hex 32" in found["WEFT_SECRET_FILE"]["remedy"]
    assert "weft knobs WEFT_PORT_BASE" in found["WEFT_PORT_BASE"]["remedy"]


def test_doctor__says_what_is_used_without_the_wrong_settings() -> None:
    found = lines(doctor("--json", "-", WEFT_PATHS="8", **WRONG))
    assert set(found) >= USED
    assert "8 paths, without the refused settings" in found["uses"]["found"]
    assert (found["knobs"]["state"], found["descriptors"]["state"]) == ("BROKEN", "ok")
    assert f"{len(WRONG)} are wrong; the others: WEFT_PATHS=8" in found["knobs"]["found"]


def test_doctor__the_table_has_the_same_lines() -> None:
    done = doctor(COLUMNS="400", **WRONG)
    first = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert set(first) >= USED | set(WRONG)
    assert done.stderr == ""


def test_doctor__a_setting_without_effect_breaks_nothing() -> None:
    given = {"WEFT_RDMA": "placement=direct", "WEFT_PLAN": "/nowhere", "WEFT_INTERFACES": "lo"}
    found = lines(doctor("--json", "-", **given))
    for name in ("WEFT_RDMA", "WEFT_PLAN", "knobs"):
        assert (found[name]["state"], bool(found[name]["remedy"])) == ("limited", True)


def test_doctor__a_refused_setting_makes_no_other_one_wrong() -> None:
    """A datapath without its library is refused, and the ports of RDMA are still meant for it."""
    given = {"WEFT_DATAPATH": "verbs", "WEFT_RDMA_LIBRARY": "/nowhere", "WEFT_RDMA_DEVICES": "x"}
    found = lines(doctor("--json", "-", **given, WEFT_INTERFACES="lo"))
    assert found["WEFT_RDMA_LIBRARY"]["state"] == "BROKEN"
    assert "needs WEFT_DATAPATH" not in json.dumps(list(found.values()))


def test_doctor__a_secret_that_others_can_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "secret").chmod(0o644)
    found = lines(doctor("--json", "-", WEFT_SECRET_FILE=str(tmp_path / "secret")))
    assert 'weft docs operating "A secret"' in found["WEFT_SECRET_FILE"]["remedy"]


def test_doctor__a_remedy_is_that_of_the_fault(tmp_path: Path) -> None:
    short = tmp_path / "secret"
    short.write_text("short")
    short.chmod(0o600)
    found = lines(
        doctor(
            *("--json", "-"),
            WEFT_SECRET_FILE=str(short),
            WEFT_INTERFACES="nic0 nic1",
            WEFT_PEER_TIMEOUT="30",
        )
    )
    assert found["WEFT_SECRET_FILE"]["remedy"].startswith("make one with openssl rand -hex 32")
    assert "WEFT_INTERFACES=nic0,nic1 for 2 devices" in found["WEFT_INTERFACES"]["remedy"]
    assert "example WEFT_PEER_TIMEOUT=silence=20s" in found["WEFT_PEER_TIMEOUT"]["remedy"]


def test_doctor__prints_a_warning_once() -> None:
    """Without RDMA, or without its library, weft warns that it uses UDP sockets."""
    done = doctor("--json", "-", WEFT_DATAPATH="auto", WEFT_RDMA_LIBRARY="", WEFT_INTERFACES="lo")
    said = [one for one in done.stderr.splitlines() if "using UDP sockets instead" in one]
    assert len(said) <= 1, said


def test_doctor__without_descriptors_says_what_it_does_not_know() -> None:
    limited = f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (40, 40)); {SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-c", limited, "doctor", "--json", "-"],
        env={**os.environ, "WEFT_PATH": "3", "WEFT_INTERFACES": "lo", "WEFT_ENGINES": "8"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    found = lines(done)
    assert done.returncode == 1
    assert found["uses"]["state"] == "not judged"
    assert {found[name]["state"] for name in ("descriptors", "WEFT_PATH")} == {"BROKEN"}


def test_settings__are_back_when_the_context_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_PATH", "3")
    monkeypatch.setenv("WEFT_PORT_BASE", "abc")
    with settings.usable() as found:
        assert [one.subject for one in found.refused] == ["WEFT_PATH", "WEFT_PORT_BASE"]
        assert not {"WEFT_PATH", "WEFT_PORT_BASE"} & set(os.environ)
    assert (os.environ["WEFT_PATH"], os.environ["WEFT_PORT_BASE"]) == ("3", "abc")


def test_settings__an_error_that_no_setting_causes_ends_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEFT_PATHS", "8")
    error = InvalidArgumentError("WEFT_PATHS is not to blame")
    with settings.usable(lambda: error) as found:
        assert (found.refused, found.error, os.environ["WEFT_PATHS"]) == ([], error, "8")


def test_trace__a_folder_that_can_be_made_is_fine(tmp_path: Path) -> None:
    assert settings.trace_complaint(str(tmp_path / "traces")) == ""
    assert "there is no folder" in settings.trace_complaint(str(tmp_path / "a" / "traces"))
