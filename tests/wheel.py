"""The contents that a wheel of weft may have: names of files, and exports of libraries.

`python -m tests.wheel FILE.whl` checks a wheel (`make wheel`); test_wheel.py checks what would go
into one. A wheel whose name promises an old C library (manylinux) is held to it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

# The newest version of the C library that a portable file may need: that of RHEL 8 and Debian 10.
# The extension may also need the system's unwinder. Each file brings its own C++ runtime.
GLIBC = (2, 28)
UNWINDER = ("GCC", (3, 3))
NEEDED = re.compile(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)")
EXTENSION = r"transport/_native\.cpython-\w+(-\w+)*\.so"
PLUGIN = r"transport/lib/libnccl-net-weft\.so"
POLICY = r"transport/policies/(window|credit|path|loss)_\w+\.so"
# Every file matches one of these, and every one of these matches a file.
FILES = (
    *(r"congestion(/\w+)*/\w+\.py", r"transport(/\w+)*/\w+\.py"),
    *(r"transport/_native\w*\.pyi", r"congestion/py\.typed", r"transport/py\.typed"),
    *(r"transport/sim/scenarios(/labs)?/\w+\.toml", r"transport/estimate/\w+\.toml"),
    *(r"transport/pages/\w+\.(html|js)", r"transport/live/weft-(grafana\.json|alerts\.yml)"),
    *(r"transport/deploy/\w+\.(env|sh|sbatch|yaml)", r"transport/docs/[A-Z]+\.md"),
    *(EXTENSION, PLUGIN, POLICY),
)
# Texts for people, which may speak of tests and benchmarks.
PAGE = r"transport/docs/.+"
METADATA = r"weft-[\w.]+\.dist-info/.+"
# Library -> the symbols that it exports.
EXPORTS = {
    EXTENSION: r"PyInit__native",
    PLUGIN: r"nccl(NetPlugin|Profiler|TunerPlugin)_v\d+",
    POLICY: r"weft_policy_descriptor",
}
# Machinery of tests and benchmarks, in names of files and symbols and in texts.
FOREIGN = re.compile(
    rb"swarm|softverbs|null_provider|stub_provider|LossyLink|(draw|run)_schedule"
    rb"|bench_(core|rdma|profiler|staging|kernel)"
)


def problems(folder: Path, is_portable: bool) -> Iterator[str]:
    """The faults of an unpacked wheel, a text each; `is_portable`: it must run on old systems."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    for pattern in FILES:
        if not any(re.fullmatch(pattern, name) for name in names):
            yield f"there is no {pattern}"
    for name in names:
        if not any(re.fullmatch(pattern, name) for pattern in (*FILES, METADATA)):
            yield f"{name} does not belong into a wheel"
        if not re.fullmatch(f"{METADATA}|{PAGE}", name):
            yield from foreign(name, (folder / name).read_bytes())
        for pattern, allowed in EXPORTS.items():
            if re.fullmatch(pattern, name):
                yield from wrong_exports(folder / name, name, allowed)
                if is_portable:
                    yield from too_new(folder / name, name)


def foreign(name: str, content: bytes) -> Iterator[str]:
    for found in sorted({match[0] for match in FOREIGN.finditer(name.encode() + b"\n" + content)}):
        yield f"{name} holds {found.decode()}, which only tests and benchmarks need"


def wrong_exports(library: Path, name: str, allowed: str) -> Iterator[str]:
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(library)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Without the version: ncclNetPlugin_v8 and not ncclNetPlugin_v8@@WEFT.
    exported = [line.split()[0].partition("@")[0] for line in said.splitlines()]
    if not exported:
        yield f"{name} exports nothing"
    for symbol in exported:
        if not re.fullmatch(allowed, symbol):
            yield f"{name} exports {symbol}"


def needed(library: Path) -> set[tuple[str, tuple[int, ...]]]:
    """The symbol versions that a library needs, such as ("GLIBC", (2, 17))."""
    command = ["readelf", "--version-info", "--wide", str(library)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {(name, tuple(map(int, text.split(".")))) for name, text in NEEDED.findall(said)}


def too_new(library: Path, name: str) -> Iterator[str]:
    for runtime, version in sorted(needed(library)):
        unwinds = re.fullmatch(EXTENSION, name) and (runtime, version) <= UNWINDER
        if not (unwinds and runtime == "GCC") and (runtime != "GLIBC" or version > GLIBC):
            yield f"{name} needs {runtime}_{'.'.join(map(str, version))}"


def audited(wheel: Path) -> Iterator[str]:
    """What auditwheel says against the name of a wheel."""
    promised = wheel.stem.rpartition("-")[2]
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = " ".join((done.stdout + done.stderr).split())
    allowed = re.search(r'(?:constrains the platform tag to|platform tag:) "(\w+)"', said)
    version = re.match(r"manylinux_(\d+)_(\d+)_", allowed[1]) if allowed else None
    if done.returncode != 0 or version is None or (int(version[1]), int(version[2])) > GLIBC:
        yield f"auditwheel does not find it to be {promised}: {said}"


def main() -> None:
    wheel = Path(sys.argv[1])
    is_portable = "manylinux" in wheel.name
    with tempfile.TemporaryDirectory() as folder:
        ZipFile(wheel).extractall(folder)
        found = list(problems(Path(folder), is_portable))
    if is_portable:
        found += audited(wheel)
    else:
        print(f"{wheel.name} was built without ziglang: it runs on this system and newer ones")
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
