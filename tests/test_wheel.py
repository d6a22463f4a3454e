"""Tests the contents of what is published: the wheel and the source distribution."""

import importlib.util
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.wheel import audited, problems, too_new

ROOT = Path(__file__).resolve().parents[1]
IS_PORTABLE = importlib.util.find_spec("ziglang") is not None


def call(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def setup_py(egg: Path, *words: str) -> None:
    egg.mkdir(exist_ok=True)
    call(sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(egg), *words)


@pytest.fixture(scope="module")
def unpacked(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that setuptools and CMake put into a wheel; `make wheel` itself takes minutes."""
    folder = tmp_path_factory.mktemp("wheel")
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or "cmake"
    tree, lib = str(pytestconfig.getoption("--build-tree")), str(folder / "lib")
    setup_py(folder / "egg", "build_py", "--build-lib", lib)
    call(cmake, "--install", tree, "--prefix", lib)
    return folder / "lib"


def test_wheel__holds_weft_and_nothing_else(unpacked: Path) -> None:
    assert list(problems(unpacked, IS_PORTABLE)) == []


@pytest.mark.skipif(not IS_PORTABLE, reason="built by the system's compiler: pip install ziglang")
def test_wheel__promises_an_old_c_library_and_keeps_it(
    unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Options of the command `build`, which must not run: everything is built already.
    settings = tmp_path / "build.cfg"
    settings.write_text(f"[build]\nbuild_lib = {unpacked}\nbuild_base = {tmp_path / 'base'}\n")
    monkeypatch.setenv("DIST_EXTRA_CONFIG", str(settings))
    made = ["--skip-build", "--bdist-dir", str(tmp_path / "parts"), "--dist-dir", str(tmp_path)]
    setup_py(tmp_path / "egg", "bdist_wheel", *made)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-manylinux_2_28_" in wheel.name
    assert list(audited(wheel)) == []


def test_wheel__a_library_that_needs_a_newer_system_is_seen(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path / "libnew.so"
    (tmp_path / "new.c").write_text("#include <math.h>\ndouble f(double x) { return exp(x); }\n")
    call(compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "new.c"), "-lm")
    assert list(too_new(library, "libnew.so")) == ["libnew.so needs GLIBC_2.29"]


def test_sdist__holds_every_source_that_the_build_reads(tmp_path: Path) -> None:
    setup_py(tmp_path / "egg", "sdist", "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    folders = ["native", "transport", "congestion", "docs/*.md", ":!docs/*/*"]
    listed = ["git", "ls-files", *folders, "CMakeLists.txt", "setup.py"]
    tracked = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(tracked.split()) <= held
    assert not [name for name in held if name.endswith(".so") or name.startswith("tests/")]


def test_wheel__what_does_not_belong_is_seen(unpacked: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(unpacked, tmp_path / "lib"))
    library = folder / "transport/lib/libweft-softverbs.so"
    shutil.copy(next(folder.glob("transport/policies/loss_*.so")), library)
    (folder / "transport/rigs.py").write_text('"""Reaches run_schedule."""')
    (extension,) = folder.glob("transport/_native*.so")
    shutil.copy(folder / "transport/lib/libnccl-net-weft.so", extension)
    (folder / "transport/py.typed").unlink()
    found = "\n".join(problems(folder, False))
    for said in (
        "libweft-softverbs.so does not belong",
        "libweft-softverbs.so holds softverbs",
        "transport/rigs.py holds run_schedule",
        f"{extension.name} exports ncclNetPlugin_v12",
        "there is no transport/py",
    ):
        assert said in found
