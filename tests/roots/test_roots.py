"""Tests what is published in root file systems of other Debian releases (`make test-roots`)."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.roots import root
from tests.wheel import audited, problems
from transport import native

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "dist"


def release(name: str) -> Path:
    try:
        return root.made(name)
    except root.RootMissingError as error:
        pytest.skip(str(error))


def host_for_old_systems(folder: Path) -> Path:
    """The C host of the plugin's tests, built for glibc 2.28."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("there is no compiler for older systems: pip install ziglang")
    program = folder / "plugin_host"
    sources = sorted(map(str, (ROOT / "tests/plugin").glob("host*.cc")))
    target = ["-target", "x86_64-linux-gnu.2.28", "-mcpu=x86_64_v3", "-std=c++20", "-O1"]
    command = [sys.executable, "-m", "ziglang", "c++", *target, f"-I{ROOT}", *sources]
    done = subprocess.run(
        [*command, "-o", str(program), "-ldl", "-lpthread"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return program


@pytest.mark.parametrize("abi", [8, 10, 12])
def test_plugin__moves_messages_on_debian_11(tmp_path: Path, abi: int) -> None:
    where = release("bullseye")
    shutil.copy(native.PLUGIN_PATH, where / "plugin.so")
    shutil.copy(host_for_old_systems(tmp_path), where / "plugin_host")
    words = ("/plugin_host", "/plugin.so", str(abi), "2", "transfer")
    done = root.run(where, *words, WEFT_INTERFACES="lo", WEFT_ENGINES="1")
    assert done.returncode == 0, done.stdout + done.stderr


def python_of(where: Path) -> str:
    done = root.run(where, "python3", "-c", "import sys; print(sys.version_info[:2])")
    assert done.returncode == 0, done.stderr
    major, minor = json.loads(done.stdout.replace("(", "[").replace(")", "]"))
    return f"{major}.{minor}"


def download(folder: Path, version: str, *requirements: str) -> None:
    """Fetches wheels for another Python, which a root then installs without a network."""
    folder.mkdir(exist_ok=True)
    platforms = [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (28, 27, 17, 12, 5)]
    command = [sys.executable, "-m", "pip", "--quiet", "download", "--only-binary=:all:"]
    chosen = ["--python-version", version, "--implementation=cp", *platforms]
    more = ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    done = subprocess.run(
        [*command, *chosen, *more, "--dest", str(folder), *requirements],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"pip download: {done.stderr.strip().splitlines()[-1]}")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def extra(name: str) -> list[str]:
    return list(project()["project"]["optional-dependencies"][name])


def test_sdist__builds_a_wheel_on_debian_13() -> None:
    where = release("trixie")
    sources = sorted(WHEELS.glob("weft-*.tar.gz"))
    if not sources:
        pytest.skip("dist has no source distribution: make sdist")
    version = python_of(where)
    download(where / "wheels", version, *project()["build-system"]["requires"])
    shutil.copy(sources[-1], where / "source.tar.gz")
    build = ("/venv/bin/pip", "wheel", "--no-index", "--find-links=/wheels", "--no-deps")
    for words in (
        ("python3", "-m", "venv", "--clear", "/venv"),
        (*build, "--wheel-dir", "/out", "/source.tar.gz"),
    ):
        done = root.run(where, *words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    (wheel,) = (where / "out").glob("weft-*-manylinux_2_28_x86_64.whl")
    assert list(audited(wheel)) == []
    with ZipFile(wheel) as opened:
        opened.extractall(where / "unpacked")
    assert list(problems(where / "unpacked", is_portable=True)) == []
    shutil.copy(wheel, WHEELS)


@pytest.mark.parametrize("name", ["bookworm", "trixie"])
def test_wheel__works_where_it_is_installed(name: str) -> None:
    where = release(name)
    version = python_of(where)
    tag = f"cp{version.replace('.', '')}"
    wheels = sorted(WHEELS.glob(f"weft-*-{tag}-{tag}-manylinux_2_28_x86_64.whl"))
    if not wheels:
        pytest.skip(f"dist has no wheel for Python {version}: make wheel where it is installed")
    download(where / "wheels", version, "numpy", "click", "rich")
    shutil.copy(wheels[-1], where / "wheels")
    for words in (
        ("python3", "-m", "venv", "--clear", "/venv"),
        ("/venv/bin/pip", "install", "--no-index", "--find-links=/wheels", "weft"),
        ("/venv/bin/weft", "doctor"),
        ("/venv/bin/weft", "sim", "first"),
        ("/venv/bin/weft", "run", "--", "true"),
    ):
        done = root.run(where, *words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


def test_policies__are_compiled_without_a_c_compiler() -> None:
    where = release("bookworm")
    if not (where / "venv/bin/weft").exists():
        pytest.skip("the wheel is not installed in the root")
    assert root.run(where, "sh", "-c", "command -v cc gcc clang").returncode != 0
    # As long as numba is missing, the policy is not blamed.
    (where / "mine.py").write_text((ROOT / "examples/my_policy.py").read_text())
    done = root.run(where, "/venv/bin/weft", "policy", "check", "--quick", "/mine.py")
    assert done.returncode == 1
    assert "was not checked" in done.stderr
    assert "pip install 'weft[policies]'" in done.stderr
    version = python_of(where)
    download(where / "wheels", version, *extra("policies"))
    install = ("/venv/bin/pip", "install", "--no-index", "--find-links=/wheels", "weft[policies]")
    for words in (
        install,
        ("/venv/bin/weft", "policy", "compile", "/mine.py", "-o", "/mine.so"),
        ("/venv/bin/weft", "run", "--", "true"),
    ):
        done = root.run(where, *words, WEFT_WINDOW_POLICY="/mine.py" if "run" in words else "")
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
