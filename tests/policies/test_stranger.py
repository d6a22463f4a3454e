"""Tests that a policy from another package can be used like a shipped one.

pip installs the package from examples/write_a_policy into a temporary folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.waiting import PATIENCE_S

pytest.importorskip("numba")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "write_a_policy"

LIVE = """
from transport import Endpoint
with (
    Endpoint(interfaces="lo", engines=1, window_policy="copa:delta=0.25") as endpoint,
    endpoint.listen() as listener,
    endpoint.connect(listener.handle) as here,
    listener.accept(timeout_s=240) as there,
):
    state = here.policies["window"]
    assert (state.name, state.params["delta"]) == ("copa", 0.25), state
    for size in (10, 3_000_000, 70_000):
        into = bytearray(size)
        handle = there.irecv_into(into)
        here.send(bytes(range(10)) * (size // 10))
        assert handle.wait(30) == size
        assert into == bytes(range(10)) * (size // 10)
    assert endpoint.counters().events_policy_failed == 0
print("live")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables with which a process can import the installed package."""
    folder = tmp_path_factory.mktemp("stranger")
    shutil.copytree(EXAMPLE, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(folder / "site"), str(folder / "source")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {"PYTHONPATH": f"{folder / 'site'}:{ROOT}", "XDG_CACHE_HOME": str(folder / "cache")}
    clean = clean_environment()
    return clean | found


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def weft(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(environment, "-c", "from transport.cli import main; main()", *arguments)


def test_stranger__is_listed_like_a_built_in(installed: dict[str, str]) -> None:
    done = weft(installed, "policy", "list", "--json", "-")
    entries = {(entry["family"], entry["name"]): entry for entry in json.loads(done.stdout)}
    copa = entries["window", "copa"]
    assert set(copa) == set(entries["window", "swift"])
    assert "weft-copa" in copa["origin"]


def test_stranger__is_checked_and_compiled_by_name(
    installed: dict[str, str], tmp_path: Path
) -> None:
    done = weft(installed, "policy", "check", "--quick", "copa")
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "copa.so"
    done = weft(installed, "policy", "compile", "copa", "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert out.read_bytes()[:4] == b"\x7fELF"


def test_stranger__runs_on_live_flows(installed: dict[str, str]) -> None:
    done = run(installed, "-c", LIVE)
    assert (done.returncode, done.stdout) == (0, "live\n"), done.stderr


def test_stranger__reaches_the_plugin_as_a_library(installed: dict[str, str]) -> None:
    """`weft run` names a compiled library in the variable, as the program may lack Python."""
    done = weft(installed | {"WEFT_WINDOW_POLICY": "copa:delta=0.3"}, "run", "--", "env")
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("WEFT_WINDOW_POLICY=")]
    path, _, params = line.removeprefix("WEFT_WINDOW_POLICY=").rpartition(":")
    assert params == "delta=0.3"
    assert Path(path).read_bytes()[:4] == b"\x7fELF"


def test_stranger__a_name_that_is_taken_names_both_places(
    installed: dict[str, str], tmp_path: Path
) -> None:
    meta = tmp_path / "other-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[weft.policies]\ncopa = other_copa:POLICY\n")
    shutil.copy(EXAMPLE / "weft_copa.py", tmp_path / "other_copa.py")
    both = installed | {"PYTHONPATH": f"{tmp_path}:{installed['PYTHONPATH']}"}
    for words, status in ((["list"], 0), (["check", "copa"], 1)):
        done = weft(both, "policy", *words)
        assert done.returncode == status, done.stderr
        text = " ".join((done.stdout + done.stderr).split())
        assert "2 window policies are named 'copa', from " in text
        assert "other_copa (other)" in text
        assert "weft_copa (weft-copa)" in text
