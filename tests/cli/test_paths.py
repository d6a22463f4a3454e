"""Tests that a bad path of a user is one line and a status, in every option that takes a path."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


def without_roots_rights() -> None:
    """Takes away what lets root read files and folders whose mode forbids it."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for right in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            if libc.prctl(PR_CAPBSET_DROP, right, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")


def test_paths__bad_ones_are_a_line_and_a_status(tmp_path: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "NCCL_"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.bad_paths", str(tmp_path)],
        cwd=ROOT,
        env=clean | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=without_roots_rights,
    )
    (tmp_path / "locked").chmod(0o700)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["tried"] > 600
