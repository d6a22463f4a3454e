"""Runs CMake from setuptools; pyproject.toml has the metadata, CMakeLists.txt sources and flags."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def tool(name: str) -> str:
    """Finds a build tool beside this Python interpreter, or on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        sys.exit(f"weft's build needs {name}: pip install {name}")
    return found


def python() -> str:
    """This interpreter's path, the same for pip and make: a new path rebuilds all policies."""
    named = Path(sys.executable).with_name("python3")
    return str(named if named.exists() else sys.executable)


class CMakeBuild(build_ext):
    """Builds everything native, then installs it beside the Python sources or into the wheel."""

    def finalize_options(self) -> None:
        chosen = self.build_temp
        super().finalize_options()
        default = ROOT / "build" / ("release" if self.in_source else "wheel")
        self.tree = Path(chosen).resolve() if chosen and not self.in_source else default
        if os.environ.get("CMAKE_BINARY_DIR"):
            self.tree = Path(os.environ["CMAKE_BINARY_DIR"])

    @property
    def in_source(self) -> bool:
        return bool(self.inplace or self.editable_mode)

    def run(self) -> None:
        prefix = ROOT if self.in_source else Path(self.build_lib).resolve()
        configure = [
            tool("cmake"),
            f"-S{ROOT}",
            f"-B{self.tree}",
            "-GNinja",
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DPython_EXECUTABLE={python()}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(len(os.sched_getaffinity(0))))
        # Configuring and installing take a second each: their output is shown only if they fail.
        for command, seen in (
            (configure, False),
            ([tool("cmake"), "--build", str(self.tree), "--parallel", jobs], True),
            ([tool("cmake"), "--install", str(self.tree), "--prefix", str(prefix)], False),
        ):
            done = subprocess.run(
                command,
                check=False,
                stdout=None if seen else subprocess.PIPE,
                stderr=None if seen else subprocess.STDOUT,
                text=True,
            )
            if done.returncode != 0:
                # The tool has printed its error; a traceback would hide it.
                print(done.stdout or "", end="")
                sys.exit(f"weft: {command[0]} {command[1]} failed with status {done.returncode}")

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class WithPages(build_py):
    """Puts the pages of docs/ beside the Python sources, where `weft docs` finds them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # the checkout's own pages are read
        folder = Path(self.build_lib) / "transport" / "docs"
        folder.mkdir(parents=True, exist_ok=True)
        for page in (ROOT / "docs").glob("*.md"):
            shutil.copyfile(page, folder / page.name)


class Wheel(bdist_wheel):
    """Names the oldest C library that the wheel runs with, if native/portable.cmake built it."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        build = (ROOT / "native" / "portable.cmake").read_text()
        glibc = re.search(r"set\(WEFT_GLIBC (\d+)\.(\d+)\)", build)
        if importlib.util.find_spec("ziglang") is None or glibc is None:
            return python, abi, platform
        return python, abi, platform.replace("linux", f"manylinux_{glibc[1]}_{glibc[2]}", 1)


setup(
    ext_modules=[Extension("transport._native", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "build_py": WithPages, "bdist_wheel": Wheel},
)
