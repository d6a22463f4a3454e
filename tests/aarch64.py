"""Compiles weft for aarch64 and runs the native tests under qemu-user: `make test-aarch64`.

The compiler is the clang in ziglang, as for what is installed. Debian's packages qemu-user-static
and libc6-arm64-cross bring the emulator and a C library; libssl3, which weft loads for TLS, comes
from Debian's archive for arm64.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from transport.compiler import linker

ROOT = Path(__file__).resolve().parents[1]
GLIBC = "2.28"
SYSROOT = Path("/usr/aarch64-linux-gnu")
EMULATOR = "qemu-aarch64-static"


def missing() -> str:
    """What this host lacks, with the remedy; "" if nothing."""
    if importlib.util.find_spec("ziglang") is None:
        return "no ziglang: pip install ziglang"
    if shutil.which(EMULATOR) is None:
        return f"no {EMULATOR}: apt-get install qemu-user-static"
    if not (SYSROOT / "lib" / "ld-linux-aarch64.so.1").exists():
        return f"no C library in {SYSROOT}: apt-get install libc6-arm64-cross"
    return ""


def run(*words: str | Path, folder: Path = ROOT) -> None:
    print("+", *words, flush=True)
    subprocess.run([str(word) for word in words], check=True, cwd=folder)


def write_compilers(tree: Path) -> None:
    """Writes the compilers as files, which CMake wants."""
    zig = linker.find("aarch64").program[0]
    for language in ("cc", "c++", "ar", "ranlib"):
        target = f" -target aarch64-linux-gnu.{GLIBC}" if language in ("cc", "c++") else ""
        file = tree / language
        file.write_text(f"#!/bin/sh\nexec '{zig}' {language}{target} \"$@\"\n")
        file.chmod(0o755)


def make_root(tree: Path) -> Path:
    """The folder of libraries for the emulator: the C library, and libssl3 from the archive."""
    root = tree / "root"
    if list(root.glob("lib/libssl.so*")):
        return root
    shutil.copytree(SYSROOT, root, symlinks=True, dirs_exist_ok=True)
    lists = tree / "apt"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    options = ("-oAPT::Architecture=arm64", "-oAPT::Architectures=arm64")
    apt = ("apt-get", "-q", *options, f"-oDir::State::Lists={lists}")
    run(*apt, "update")
    packages = tree / "packages"
    packages.mkdir(exist_ok=True)
    run(*apt, "download", "libssl3", folder=packages)
    for package in packages.glob("*.deb"):
        run("dpkg", "-x", package, tree / "unpacked")
    for library in (tree / "unpacked/usr/lib/aarch64-linux-gnu").glob("*.so*"):
        shutil.copy(library, root / "lib")
    return root


def build(tree: Path, root: Path, jobs: str) -> None:
    (tree / "policies").mkdir(parents=True, exist_ok=True)
    write_compilers(tree)
    words = ("-m", "transport.compiler", "--all", "--cpu", "aarch64", "--out", tree / "policies")
    run(sys.executable, *words)
    run(
        *("cmake", "-G", "Ninja", "-S", ROOT, "-B", tree / "build"),
        *("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"),
        *(f"-DCMAKE_C_COMPILER={tree}/cc", f"-DCMAKE_CXX_COMPILER={tree}/c++"),
        *(f"-DCMAKE_AR={tree}/ar", f"-DCMAKE_RANLIB={tree}/ranlib"),
        *(f"-DWEFT_BUILT_POLICIES={tree}/policies", f"-DPython_EXECUTABLE={sys.executable}"),
        f"-DCMAKE_CROSSCOMPILING_EMULATOR={shutil.which(EMULATOR)};-L;{root}",
    )
    run("cmake", "--build", tree / "build", "--target", "weft_tests", "--parallel", jobs)


def main() -> int:
    if reason := missing():
        print(f"skipped: {reason}")
        return 0
    tree = ROOT / "build" / "aarch64"
    tree.mkdir(parents=True, exist_ok=True)
    jobs = str(os.cpu_count() or 1)
    build(tree, make_root(tree), jobs)
    ctest = ("ctest", "--test-dir", tree / "build", "--output-on-failure", "--parallel", jobs)
    return subprocess.run([str(word) for word in ctest], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
