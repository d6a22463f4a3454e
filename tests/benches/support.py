"""Helpers of the benchmarks' tests: the processes that a benchmark has started."""

import contextlib
from pathlib import Path


def children(pid: int) -> set[int]:
    """All descendants of a process, from /proc."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == pid:
                    child = int(entry.name)
                    found |= {child, *children(child)}
    return found
