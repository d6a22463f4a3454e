"""Makes root file systems of Debian releases, and runs commands in them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.environment import OVER_THE_NETWORK

ROOTS = Path(os.environ.get("WEFT_TEST_ROOTS") or Path(__file__).parents[2] / "build" / "roots")
# Release -> packages beside the base system, and the mirror.
DEBIAN = "http://deb.debian.org/debian"
RELEASES = {
    "bullseye": (["libssl1.1"], DEBIAN),  # Debian 11: glibc 2.31
    "bookworm": (["python3-venv", "libssl3"], DEBIAN),  # Debian 12: glibc 2.36, Python 3.11
    "trixie": (["python3-venv", "python3-dev", "g++", "libssl3t64"], DEBIAN),  # 13: 2.41, 3.13
}


class RootMissingError(Exception):
    """A root file system cannot be made here; the text says why."""


def made(release: str) -> Path:
    """The folder of a release's root, made on first use (some minutes and a network)."""
    root = ROOTS / release
    if (root / ".whole").exists():
        return root
    if os.geteuid() != 0:
        raise RootMissingError("making a root file system takes root")
    program = shutil.which("debootstrap")
    if program is None:
        raise RootMissingError("debootstrap is not installed: apt-get install debootstrap")
    packages, mirror = RELEASES[release]
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    include = "--include=" + ",".join(["ca-certificates", *packages])
    command = [program, "--variant=minbase", include, release, str(root), mirror]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise RootMissingError(f"debootstrap {release}: {lines[-1] if lines else 'failed'}")
    (root / ".whole").touch()
    return root


def run(root: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a root, in a mount namespace of its own with /proc, /dev and /sys."""
    mounts = "".join(
        f"mount --bind /{one} {root}/{one} && " for one in ("proc", "dev", "sys", "dev/shm")
    )
    clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    inner = f'{mounts} exec chroot {root} "$@"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", inner, "sh", *words],
        env=clean | OVER_THE_NETWORK | variables,
        capture_output=True,
        text=True,
        check=False,
    )
