"""Probes what this host supports, for `weft doctor`: sockets, libraries, GPUs."""

import ctypes
import ctypes.util
import errno
import os
import socket
from contextlib import closing, suppress
from importlib import metadata
from pathlib import Path

UDP_SEGMENT = 103
UDP_GRO = 104
IP_TOS_ECT0 = 0x02


# CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED of cuda.h.
CUDA_DMA_BUF_SUPPORTED = 124
NO_GPU = "the NVIDIA driver finds no GPU"

# Settings of an endpoint that looks at a host and must not touch the files of its jobs.
BESIDE_A_JOB = {"trace": "", "record_file": ""}


def read_text(path: Path | str) -> str:
    """The text of a small file of /proc or /sys; "" if it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


NO_LOOPBACK = "cannot open a pair of UDP sockets on loopback"


def loopback_pair() -> tuple[socket.socket, socket.socket]:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    receiver.settimeout(2.0)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(receiver.getsockname())
    return sender, receiver


def offload_works() -> str:
    """Tries GSO and GRO over lo; returns "" on success, else what failed."""
    try:
        sender, receiver = loopback_pair()
    except OSError as error:
        return f"{NO_LOOPBACK}: {error.strerror}"
    with closing(sender), closing(receiver):
        try:
            sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
        except OSError as error:
            return f"UDP_SEGMENT: {error.strerror}"
        try:
            receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        except OSError as error:
            return f"UDP_GRO: {error.strerror}"
        try:
            sender.send(bytes(2000))
            data, ancillary, _, _ = receiver.recvmsg(65536, 64)
        except OSError as error:
            return f"sending two segments in one call failed: {error}"
        sizes = [value for level, kind, value in ancillary if (level, kind) == (17, UDP_GRO)]
        if len(data) != 2000 or not sizes:
            return "the receiver got the segments separately"
    return ""


def ecn_works() -> str:
    """Tries to send and read an ECN mark over lo; returns "" on success, else what failed."""
    try:
        sender, receiver = loopback_pair()
    except OSError as error:
        return f"{NO_LOOPBACK}: {error.strerror}"
    with closing(sender), closing(receiver):
        try:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, IP_TOS_ECT0)
            receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
            sender.send(b"x")
            _, ancillary, _, _ = receiver.recvmsg(16, 64)
        except OSError as error:
            return str(error)
        marks = [v[0] & 3 for _, kind, v in ancillary if kind == socket.IP_TOS]
        return "" if marks == [IP_TOS_ECT0] else f"marks seen: {marks}"


def socket_buffer_bytes(wanted_bytes: int) -> int:
    """The size of the receive buffer that the kernel grants if `wanted_bytes` are requested."""
    so_rcvbufforce = 33
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, so_rcvbufforce, wanted_bytes)
        except OSError:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted_bytes)
        # The kernel reports twice the size that it grants, to include its own overhead.
        return probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def free_ports(address: str, kind: socket.SocketKind, ports: range, wanted: int) -> int:
    """How many of the ports are free for this user now, at most `wanted`."""
    found = 0
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports:
        if found == wanted:
            break
        with closing(socket.socket(family, kind)) as probe:
            if kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address.partition("%")[0], port))
            except OSError as error:  # another reason than the port says nothing about it
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
            found += 1
    return found


def unknown_socket_interface(names: str) -> str:
    """Why NCCL's own bootstrap will find no interface with this NCCL_SOCKET_IFNAME; "": it will.

    weft may have another list, WEFT_INTERFACES, and then does not read this one.
    """
    wanted = [one for one in names.removeprefix("=").split(",") if one]
    if not wanted or names.startswith("^"):
        return ""
    with suppress(OSError):
        there = [name for _, name in socket.if_nameindex()]
        named = wanted if names.startswith("=") else []
        if not any(
            name in named or (not named and name.startswith(tuple(wanted))) for name in there
        ):
            return (
                f"NCCL_SOCKET_IFNAME={names} names no interface of this host, and NCCL's own "
                f"bootstrap needs one; there is {', '.join(there)}"
            )
    return ""


def nccl_library() -> tuple[str, str]:
    """Path and version of NCCL, preferably of a Python wheel; empty if there is none."""
    for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"):
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name.startswith("libnccl.so"):
                return str(file.locate()), metadata.version(package)
    found = ctypes.util.find_library("nccl")
    if found is None:
        return "", ""
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL(found).ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError) as error:
        return found, f"cannot be loaded: {error}"
    return found, f"{version.value // 10000}.{version.value // 100 % 100}.{version.value % 100}"


def cuda_devices() -> tuple[int, str]:
    """The number of CUDA devices and the driver's version, or 0 and the reason."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, "no libcuda.so.1: no NVIDIA driver on this host"
    if (status := cuda.cuInit(0)) != 0:
        if status == 100:  # CUDA_ERROR_NO_DEVICE
            return 0, NO_GPU
        return 0, f"cuInit failed with status {status}"
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    cuda.cuDeviceGetCount(ctypes.byref(count))
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if count.value == 0:
        return 0, NO_GPU
    return count.value, f"{version.value // 1000}.{version.value % 1000 // 10}"


def dmabuf_works() -> str:
    """Why a NIC cannot access GPU memory through dma-buf on this host; "" if no reason is found."""
    count, problem = cuda_devices()
    if count == 0:
        return problem or "no GPU"
    try:
        if not hasattr(ctypes.CDLL("libibverbs.so.1"), "ibv_reg_dmabuf_mr"):
            return "libibverbs is older than 34"
    except OSError:
        return "no libibverbs.so.1"
    cuda, device, exports = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0), ctypes.c_int(0)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(exports), CUDA_DMA_BUF_SUPPORTED, device)
    return "" if exports.value else "the GPU driver exports no dma-buf (its open modules do)"


def peer_memory_works() -> bool:
    """Whether the kernel lets a NIC pin GPU memory by its address."""
    return any(Path("/sys/module", name).is_dir() for name in ("nvidia_peermem", "nv_peer_mem"))


def library_loads(path: Path) -> str:
    """Tries to load a library; returns "" on success, else the loader's error."""
    try:
        ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        return str(error)
    return ""
