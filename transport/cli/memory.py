"""Finds how much memory is available in this host and in the control groups of this process."""

from __future__ import annotations

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _of_host(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _groups(own: Path, root: Path) -> list[tuple[int | None, int | None]]:
    """Limit and use in bytes of this process's control groups and their parents (v1 and v2)."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base, names = root, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = base / path.lstrip("/")
        while folder.is_relative_to(base):
            found.append((_number(folder / names[0]), _number(folder / names[1])))
            if folder == base:
                break
            folder = folder.parent
    return found


def available_bytes(
    meminfo: Path = Path("/proc/meminfo"),
    own: Path = Path("/proc/self/cgroup"),
    root: Path = CGROUPS,
) -> int | None:
    """The memory left in the host, or in the control group with the least; None if unknown."""
    left = [_of_host(meminfo)]
    left += [limit - (used or 0) for limit, used in _groups(own, root) if limit is not None]
    known = [one for one in left if one is not None]
    return max(min(known), 0) if known else None
