"""Tests that no code of a policy runs if another user could have written it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.support import LOCAL
from transport import Endpoint, WeftError
from transport.compiler import PolicyError, compile_policy, library, source
from transport.trusted import UntrustedError

NOBODY = 65534
EXAMPLE = Path(__file__).parents[2] / "examples" / "my_policy.py"
CODE = """
#include <stdio.h>
__attribute__((constructor)) static void run(void) { fprintf(stderr, "the constructor runs\\n"); }
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a library that says when it is loaded, under the name of a policy."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    made = tmp_path / "policies"
    made.mkdir(mode=0o755)
    (tmp_path / "code.c").write_text(CODE)
    out = made / "window_swift.so"
    flags = ["-shared", "-fPIC", "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-s"]
    subprocess.run([compiler, *flags, "-o", str(out), str(tmp_path / "code.c")], check=True)
    return made


def open_with(folder: Path) -> str:
    """The output of a process that opens an endpoint with the policies of the folder."""
    program = (
        "from transport import Endpoint, WeftError\n"
        "try:\n"
        f"    Endpoint(**{LOCAL!r}, policy_directory={str(folder)!r})\n"
        "except WeftError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return done.stdout + done.stderr


def test_policy_trust__the_library_of_this_test_would_run(folder: Path) -> None:
    assert "the constructor runs" in open_with(folder)


@needs_root
@pytest.mark.parametrize("of_other", ["window_swift.so", "."])
def test_policy_trust__no_constructor_of_another_user_runs(folder: Path, of_other: str) -> None:
    os.chown(folder / of_other, NOBODY, NOBODY)
    said = open_with(folder)
    assert "belongs to another user" in said
    assert "the constructor runs" not in said


@pytest.mark.parametrize("writable", ["window_swift.so", ".", ".."])
@pytest.mark.parametrize("bit", [0o002, 0o020])
def test_policy_trust__nor_one_that_others_can_write(folder: Path, writable: str, bit: int) -> None:
    place = (folder / writable).resolve()
    place.chmod(place.stat().st_mode | bit)
    said = open_with(folder)
    assert f"chmod go-w {place}" in said
    assert "the constructor runs" not in said


def test_policy_trust__a_python_library_call_checks_too(tmp_path: Path) -> None:
    out = compile_policy(EXAMPLE, tmp_path / "mine.so")
    assert library.load(out).name
    out.chmod(0o666)
    with pytest.raises(UntrustedError, match="chmod go-w"):
        library.load(out)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_policy_trust__a_source_that_others_can_write_does_not_run(
    what: str, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    place = tmp_path / "sources"
    place.mkdir(mode=0o755)
    file = place / "mine.py"
    file.write_text(f"open({str(ran)!r}, 'w').close()\n")
    (file if what == "file" else place).chmod(0o777)
    with pytest.raises(PolicyError, match="chmod go-w"):
        source.load(file)
    assert not ran.exists()
    (file if what == "file" else place).chmod(0o755)
    with pytest.raises(PolicyError, match="no POLICY is declared"):
        source.load(file)
    assert ran.exists()


def test_policy_trust__a_compiled_policy_is_trusted_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        out = compile_policy(EXAMPLE, tmp_path / "mine.so")
    finally:
        os.umask(before)
    with Endpoint(**LOCAL, window_policy=str(out)):
        pass


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_policy_trust__nor_is_a_secret_used_that_others_can_read(mode: int, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 32)
    secret.chmod(mode)
    with pytest.raises(WeftError, match=r"WEFT_SECRET_FILE=.* cannot be used: .*chmod go-"):
        Endpoint(**LOCAL, secret_file=str(secret))
