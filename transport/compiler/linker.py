"""Links compiled policies: by the system's C compiler, or else by the linker in ziglang."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transport.compiler.errors import INSTALL, PolicyError, ToolMissingError

# Every symbol must be found, and bound when the library is loaded; nothing else is in the file.
_SHARED = ("-z", "defs", "-z", "now", "-z", "noexecstack", "--build-id=none", "-s")


@dataclass(frozen=True, slots=True)
class Linker:
    """How a linker is called. is_compiler: by a C compiler, which knows where the C library is."""

    program: tuple[str, ...]
    is_compiler: bool

    @property
    def name(self) -> str:
        return Path(self.program[0]).name if self.is_compiler else "ziglang"

    def link(self, part: Path, out: Path) -> None:
        """Links one object into a shared library that needs the C library alone."""
        if self.is_compiler:
            options = ["-shared", "-nostdlib", "-Wl," + ",".join(_SHARED)]
            libraries = ["-Wl,--as-needed", "-lm", "-lc"]
        else:
            options = ["-shared", *_SHARED]
            libraries = ["--as-needed", _path_of("libm.so.6"), _path_of("libc.so.6")]
        self._call([*options, "-o", str(out), str(part), *libraries], out)

    def merge(self, parts: Sequence[Path], out: Path) -> None:
        """Links several objects into one."""
        options = ["-r", "-nostdlib"] if self.is_compiler else ["-r"]
        self._call([*options, "-o", str(out), *map(str, parts)], out)

    def _call(self, arguments: list[str], out: Path) -> None:
        command = [*self.program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = f"linking failed: {done.stderr.strip()}"
            raise PolicyError(out.name, 0, reason, "see the linker's error")


def _path_of(library: str) -> str:
    """The path of a library that is loaded into this process, or of the one that would be."""
    ctypes.CDLL(library)
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if Path(path).name == library:
            return "/" + path
    raise ToolMissingError("policy compiler", f"{library} was not found", "install the C library")


def _zig() -> str | None:
    found = importlib.util.find_spec("ziglang")
    return str(Path(found.origin).parent / "zig") if found and found.origin else None


def find(foreign: str = "") -> Linker:
    """The linker of this host; `foreign`: for another architecture, as in "aarch64".

    ToolMissingError if there is none.
    """
    if foreign:
        if (zig := _zig()) is None:
            raise ToolMissingError("policy compiler", f"no linker for {foreign}", INSTALL)
        architecture = "aarch64" if foreign == "aarch64" else "x86_64"
        return Linker((zig, "cc", "-target", f"{architecture}-linux-gnu.2.28"), True)
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return Linker((found,), True)
    if (zig := _zig()) is not None:
        return Linker((zig, "ld.lld"), False)
    reason = "there is neither a C compiler (cc, gcc, clang) nor ziglang, to link a policy"
    raise ToolMissingError("policy compiler", reason, INSTALL)
