"""Builds the guest's kernel and initrd in build/rdma from Debian's kernel, with rxe repaired.

packages.py lists the required packages.
"""

import hashlib
import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.rdma import repair
from tests.rdma.packages import LabError, kernel_headers

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "build" / "rdma"
KERNEL = OUT / "vmlinux"
INITRD = OUT / "initrd"
STAMP = OUT / "stamp"

# The image depends on these files; not on start.sh, which each run reads anew.
SOURCES = ("image.py", "repair.py", "init.sh")
RXE = "drivers/infiniband/sw/rxe"
MODULES = (
    *("virtio_pci", "virtio_console", "9p", "9pnet_virtio", "overlay", "veth"),
    *("sch_netem", "sch_prio", "sch_tbf", "sch_ingress", "cls_u32", "cls_matchall", "act_mirred"),
    # rxe needs crc32, which it requests by name; the guest does not load modules by itself.
    *("crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe"),
)
APPLETS = ("sh", "mount", "insmod", "mkdir", "ln", "echo", "switch_root")


def call(*words: object, cwd: Path | None = None) -> str:
    done = subprocess.run([*map(str, words)], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def stamp(version: str) -> str:
    """A hash of the kernel's package version and the sources of the image."""
    digest = hashlib.sha256(version.encode())
    for name in SOURCES:
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()


def build() -> bool:
    """Builds the image if it is not up to date; returns whether it built."""
    release, version = kernel_headers()
    wanted = stamp(f"{release} {version}")
    if STAMP.exists() and STAMP.read_text() == wanted and KERNEL.exists() and INITRD.exists():
        return False
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=OUT, prefix="build-") as name:
        work = Path(name)
        STAMP.unlink(missing_ok=True)
        tree = work / "kernel"
        call("dpkg", "-x", fetch(f"linux-image-{release}", version, work), tree)
        series = ".".join(release.split(".")[:2])
        source = rxe_source(fetch(f"linux-source-{series}", version, work), work)
        modules = tree / "lib/modules" / release
        shutil.copy(compiled(source, release), modules / "kernel" / RXE)
        call("depmod", "-b", tree, release)
        (work / "vmlinux").write_bytes(unpacked((tree / f"boot/vmlinuz-{release}").read_bytes()))
        pack(tree, release, work / "ram")
        os.replace(work / "vmlinux", KERNEL)
        os.replace(work / "ram.cpio", INITRD)
    STAMP.write_text(wanted)
    return True


def fetch(package: str, version: str, work: Path) -> Path:
    """Downloads the package with apt, which checks the archive's signature."""
    work.chmod(0o755)
    try:
        call("apt-get", "download", "-qq", f"{package}={version}", cwd=work)
    except LabError as error:
        hint = "for a newer kernel: apt-get update, apt-get install linux-headers-amd64"
        raise LabError(f"{error}\n{hint}") from None
    return next(work.glob(f"{package}_*.deb"))


def rxe_source(package: Path, work: Path) -> Path:
    """Extracts rxe's folder from the kernel source: a tarball in a tarball in a package."""
    with subprocess.Popen(["dpkg", "--fsys-tarfile", package], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for path, file in source_files(process.stdout):
            target = work / "rxe" / path.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(file.read())
        process.kill()
    broken = work / "rxe" / "rxe_resp.c"
    if not broken.exists():
        raise LabError(f"{package.name} holds no {RXE}")
    try:
        broken.write_text(repair.repaired(broken.read_text()))
    except ValueError as error:
        raise LabError(f"{package.name}: {error}") from None
    return work / "rxe"


def source_files(stream: IO[bytes]) -> Iterator[tuple[Path, IO[bytes]]]:
    """The files of rxe in the tarball; stops reading after the last, because unpacking is slow."""
    with tarfile.open(fileobj=stream, mode="r|") as outer:
        for member in outer:
            packed = outer.extractfile(member) if member.name.endswith(".tar.xz") else None
            if packed is None:
                continue
            begun = False
            with tarfile.open(fileobj=packed, mode="r|xz") as inner:
                for entry in inner:
                    path = Path(entry.name)
                    inside = f"/{RXE}/" in entry.name
                    file = inner.extractfile(entry) if inside and entry.isfile() else None
                    if file is not None:
                        yield path, file
                    if begun and not inside:
                        return
                    begun = begun or inside


def compiled(source: Path, release: str) -> Path:
    headers = Path("/lib/modules") / release / "build"
    jobs = os.cpu_count() or 1
    call("make", "-s", f"-j{jobs}", "-C", headers, f"M={source}", "CONFIG_RDMA_RXE=m", "modules")
    module = source / "rdma_rxe.ko"
    call("strip", "--strip-debug", module)
    return module


def unpacked(image: bytes) -> bytes:
    """The kernel as an ELF file, which boots seconds faster in QEMU than a compressed one."""
    start = image.find(b"\xfd7zXZ\x00")
    if start < 0:
        raise LabError("the kernel is not compressed with xz as in Debian 12")
    return lzma.LZMADecompressor().decompress(image[start:])


def pack(tree: Path, release: str, ram: Path) -> None:
    """Writes ram.cpio: busybox, the modules in load order, init."""
    for name in ("bin", "dev", "proc", "sys", "modules", "below", "memory", "merged"):
        (ram / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", ram / "bin")
    for applet in APPLETS:
        (ram / "bin" / applet).symlink_to("busybox")
    order: dict[str, None] = {}
    for module in MODULES:
        for line in call("modprobe", "-d", tree, "-S", release, "-D", module).splitlines():
            if line.startswith("insmod "):
                path = Path(line.split()[1])
                shutil.copy(path, ram / "modules")
                order[path.name] = None
    (ram / "modules" / "order").write_text("".join(f"{name}\n" for name in order))
    shutil.copy(HERE / "init.sh", ram / "init")
    (ram / "init").chmod(0o755)
    # Not compressed, because the emulated processor decompresses slowly.
    names = "\n".join(p.relative_to(ram).as_posix() for p in sorted(ram.rglob("*")))
    with ram.with_suffix(".cpio").open("wb") as out:
        words = ["cpio", "--create", "--quiet", "--format=newc", "--owner=0:0"]
        subprocess.run(words, cwd=ram, input=names.encode(), stdout=out, check=True)
