"""Tests that a wheel would hold weft, and no machinery of its tests and benchmarks."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheel import problems

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def unpacked(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that setuptools and CMake put into a wheel; `make wheel` itself takes minutes."""
    folder = tmp_path_factory.mktemp("wheel")
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or "cmake"
    (folder / "egg").mkdir()
    tree, lib = str(pytestconfig.getoption("--build-tree")), str(folder / "lib")
    python = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(folder / "egg")]
    for command in (
        [*python, "build_py", "--build-lib", lib],
        [cmake, "--install", tree, "--prefix", lib],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "lib"


def test_wheel__holds_weft_and_nothing_else(unpacked: Path) -> None:
    assert list(problems(unpacked)) == []


def test_wheel__what_does_not_belong_is_seen(unpacked: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(unpacked, tmp_path / "lib"))
    library = folder / "transport/lib/libweft-softverbs.so"
    shutil.copy(next(folder.glob("transport/policies/loss_*.so")), library)
    (folder / "transport/rigs.py").write_text('"""Reaches run_schedule."""')
    (extension,) = folder.glob("transport/_native*.so")
    shutil.copy(folder / "transport/lib/libnccl-net-weft.so", extension)
    (folder / "transport/py.typed").unlink()
    found = "\n".join(problems(folder))
    for said in (
        "libweft-softverbs.so does not belong",
        "libweft-softverbs.so holds softverbs",
        "transport/rigs.py holds run_schedule",
        f"{extension.name} exports ncclNetPlugin_v12",
        "there is no transport/py",
    ):
        assert said in found
