"""Starts and stops the virtual machine: `python -m tests.rdma.guest deps|build|run -- CMD`.

The guest can write to the host only below build/rdma/share.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from tests.rdma import image, packages
from tests.rdma.packages import LabError

SHARE = image.OUT / "share"
TIMED_OUT = 124  # exit status, as of timeout(1)
NO_STATUS = 125
CONSOLE_LINES = 30
SILENCE_S = 240  # a guest that boots prints within some 15 s, or a minute beside other work

# Environment variables of the host's shell that the command in the guest must not get.
NOT_PASSED = {"_", "HOSTNAME", "OLDPWD", "PWD", "SHLVL", "TERM", "TMPDIR"}
# tsc=reliable and mitigations=off avoid useless work on an emulated processor. norandmaps: with
# fixed addresses QEMU need not translate code again for other addresses.
KERNEL_LINE = (
    "console=ttyS0 quiet loglevel=4 panic=-1 tsc=reliable mitigations=off nokaslr norandmaps"
    " audit=0 apparmor=0 selinux=0 psi=0 cgroup_disable=memory"
)


def exports(environment: Mapping[str, str]) -> str:
    """The environment as shell lines, without names that are not valid in a shell."""
    passed = {
        name: value
        for name, value in environment.items()
        if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and name not in NOT_PASSED
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in passed.items())


def prepare(control: Path, command: Sequence[str]) -> None:
    """Writes the files for start.sh; the folder is private, as the environment may hold secrets."""
    place = f"root={shlex.quote(str(image.ROOT))}\nshare={shlex.quote(str(SHARE))}\n"
    (control / "place").write_text(place)
    (control / "environment").write_text(exports(os.environ))
    (control / "command").write_text(shlex.join(command) + "\n")
    shutil.copy(image.HERE / "start.sh", control)


def shared(tag: str, path: Path, *options: str) -> list[str]:
    """QEMU options that share a host folder under a tag; `remap`: the folder spans file systems."""
    where = f"path={str(path).replace(',', ',,')}"
    backend = ",".join(["local", f"id={tag}", where, "security_model=none", "multidevs=remap"])
    device = f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"
    return ["-fsdev", ",".join([backend, *options]), "-device", device]


def machine(control: Path, processors: int, memory_mib: int) -> list[str]:
    # Only TCG: not every host has KVM, and not every KVM boots a stock kernel. Without erms, copies
    # avoid `rep movsb`, which QEMU emulates byte by byte; packets then cost a quarter.
    return [
        *("qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,erms=off"),
        *("-smp", str(processors), "-m", str(memory_mib)),
        *("-nodefaults", "-nic", "none", "-display", "none", "-no-reboot"),
        *("-kernel", str(image.KERNEL), "-initrd", str(image.INITRD), "-append", KERNEL_LINE),
        *("-serial", f"file:{control / 'console'}"),
        *("-device", "virtio-serial-pci", "-chardev", "stdio,id=out,signal=off"),
        *("-device", "virtserialport,chardev=out"),
        *shared("root", Path("/"), "readonly=on"),
        *shared("control", control),
        *shared("share", SHARE),
    ]


def pump(source: IO[bytes], begun: threading.Event) -> None:
    """Forwards the guest's output to stdout; continues to read if stdout is closed.

    begun: set by the first output.
    """
    heard = True
    while piece := os.read(source.fileno(), 1 << 16):
        begun.set()
        if not heard:
            continue
        try:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            heard = False


class SilentGuestError(LabError):
    """The emulated machine has printed nothing: its kernel did not come up."""


def boot(words: Sequence[str], timeout_s: float, silence_s: float) -> bool:
    """Runs QEMU until the guest powers off; False if it timed out.

    SilentGuestError if the command's output has not begun after `silence_s`.
    """
    begun = threading.Event()
    # stdin is a pipe that stays open: at EOF QEMU would close the port that also carries output.
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pumping = threading.Thread(target=pump, args=(process.stdout, begun))
        pumping.start()
        try:
            try:
                process.wait(min(silence_s, timeout_s))
            except subprocess.TimeoutExpired:
                if not begun.is_set():
                    raise SilentGuestError(f"nothing was printed in {silence_s:g} s") from None
                process.wait(max(timeout_s - silence_s, 0))
        except subprocess.TimeoutExpired:
            return False
        finally:
            end(process)
            pumping.join()
    return True


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()


def run(
    command: Sequence[str], *, timeout_s: float = 600, processors: int = 2, memory_mib: int = 1024
) -> int:
    """Runs the command in a fresh guest, in the repository's root; returns its exit status."""
    image.build()
    if shutil.which("qemu-system-x86_64") is None:
        raise LabError("QEMU is missing: run `python -m tests.rdma.guest deps`")
    SHARE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=image.OUT, prefix="run-") as name:
        control = Path(name)
        prepare(control, command)
        words = machine(control, processors, memory_mib)
        try:
            ended = boot(words, timeout_s, SILENCE_S)
        except SilentGuestError as error:
            # Seen once in hundreds of boots.
            print(f"guest: {error}; booting again", file=sys.stderr)
            ended = boot(words, timeout_s, timeout_s)
        if not ended:
            print(f"guest: ended after {timeout_s:g} s", file=sys.stderr)
            return TIMED_OUT
        status = control / "status"
        if status.exists():
            return int(status.read_text())
        console = control / "console"
        lines = console.read_text(errors="replace").splitlines() if console.exists() else []
        print(*lines[-CONSOLE_LINES:], sep="\n", file=sys.stderr)
        print("guest: went down before the command ended", file=sys.stderr)
        return NO_STATUS


def stop(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.rdma.guest")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("deps", help="install missing Debian packages")
    verbs.add_parser("build", help="build kernel and initrd unless they are up to date")
    runs = verbs.add_parser("run", help="boot, run a command, return its exit status")
    runs.add_argument("--timeout", type=float, default=600, metavar="S", help="default 600")
    # Two processors, because on one, two polling threads wait 4 ms for each other.
    runs.add_argument("--processors", type=int, default=2, metavar="N", help="default 2")
    runs.add_argument("--memory", type=int, default=1024, metavar="MIB", help="default 1024")
    runs.add_argument("command", nargs="+", help="after --: the program and its arguments")
    return parser.parse_args()


def main() -> int:
    wanted = arguments()
    # Exit on these signals, which ends QEMU, too; Ctrl-C already raises KeyboardInterrupt.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        if wanted.verb == "deps":
            return packages.install()
        if wanted.verb == "build":
            begun_s = time.monotonic()
            made = image.build()
            took = f"built in {time.monotonic() - begun_s:.0f} s" if made else "up to date"
            print(f"{image.OUT.relative_to(image.ROOT)}: {took}")
            return 0
        return run(
            wanted.command,
            timeout_s=wanted.timeout,
            processors=wanted.processors,
            memory_mib=wanted.memory,
        )
    except LabError as error:
        print(f"guest: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
