"""Decides which packages of Debian the lab needs, and whether they are there.

Never installs unless asked (`deps`), and without the right to says what to type.
"""

import os
import shutil
import subprocess

PACKAGES = (
    # To build and boot the image.
    *("qemu-system-x86", "busybox-static", "cpio", "kmod", "gcc", "make", "linux-headers-amd64"),
    # What the guest, whose files are the host's, runs.
    *("iproute2", "rdma-core", "ibverbs-providers", "ibverbs-utils", "perftest"),
    *("python3-pyverbs", "libibverbs-dev", "librdmacm-dev"),
)


class LabError(Exception):
    """Something outside the lab is not as needed; the text is for the person at the terminal."""


def installed(package: str) -> str | None:
    """The version that is installed, if any."""
    words = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", package]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LabError("the lab needs Debian 12: there is no dpkg here") from None
    status, _, version = done.stdout.partition(" ")
    return version if status == "installed" else None


def kernel_headers() -> tuple[str, str]:
    """Release and package version of the kernel that the installed headers belong to."""
    words = ["dpkg-query", "--show", "--showformat=${Depends}", "linux-headers-amd64"]
    if installed("linux-headers-amd64") is None:
        raise LabError("linux-headers-amd64 is missing: run `python -m tests.rdma.guest deps`")
    depends = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    package = depends.split()[0].rstrip(",")
    version = installed(package)
    if version is None:
        raise LabError(f"{package} is not installed")
    return package.removeprefix("linux-headers-"), version


def install() -> int:
    """Installs what is missing; a status for the shell."""
    missing = [package for package in PACKAGES if installed(package) is None]
    if not missing:
        return 0
    steps = (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends"])
    commands = [steps[0], [*steps[1], *missing]]
    sudo = ["sudo", "-n"]
    if os.geteuid() == 0:
        prefix = []
    elif (
        shutil.which("sudo")
        and subprocess.run([*sudo, "true"], capture_output=True).returncode == 0
    ):
        prefix = sudo
    else:
        print("The lab needs packages that only root can install. Type:")
        print("  sudo " + " && sudo ".join(" ".join(words) for words in commands))
        return 1
    for words in commands:
        quiet = ["env", "DEBIAN_FRONTEND=noninteractive", *words, "-qq"]
        status = subprocess.run([*prefix, *quiet], check=False).returncode
        if status != 0:
            return status
    return 0
