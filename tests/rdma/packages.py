"""Checks for the Debian packages that the guest needs; `deps` installs them or prints commands."""

import os
import shutil
import subprocess

PACKAGES = (
    # Packages to build and boot the image.
    *("qemu-system-x86", "busybox-static", "cpio", "kmod", "gcc", "make", "linux-headers-amd64"),
    # Programs for the guest, which uses the host's files.
    *("iproute2", "rdma-core", "ibverbs-providers", "ibverbs-utils", "perftest"),
    *("python3-pyverbs", "libibverbs-dev", "librdmacm-dev"),
)


class LabError(Exception):
    """A requirement on the host is not met; the message is for the user."""


def installed(package: str) -> str | None:
    """The installed version of a package, or None."""
    words = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", package]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LabError("the guest needs a Debian 12 host: dpkg not found") from None
    status, _, version = done.stdout.partition(" ")
    return version if status == "installed" else None


def kernel_headers() -> tuple[str, str]:
    """Release and package version of the kernel whose headers are installed."""
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
    """Installs missing packages; returns an exit status."""
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
        print("Only root can install the missing packages. Run:")
        print("  sudo " + " && sudo ".join(" ".join(words) for words in commands))
        return 1
    for words in commands:
        quiet = ["env", "DEBIAN_FRONTEND=noninteractive", *words, "-qq"]
        status = subprocess.run([*prefix, *quiet], check=False).returncode
        if status != 0:
            return status
    return 0
