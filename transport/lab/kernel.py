"""System calls that Python 3.11 does not provide: bpf(2), setns, mount.

Failures raise an OSError that names the operation.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

CLONE_NEWNET = 0x40000000
MS_BIND, MS_REC, MS_SHARED = 1 << 12, 1 << 14, 1 << 20
MNT_DETACH = 2
BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}

MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, PROG_LOAD, MAP_BY_ID, INFO = 0, 1, 2, 5, 14, 15
MAP_ARRAY = 2
PROG_SCHED_CLS = 3
LOG_BYTES = 1 << 16
# Not the GPL: no kernel helper that the programs call is restricted to GPL programs.
LICENSE = b"Apache-2.0\0"

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def enter_namespace(descriptor: int) -> None:
    """Moves the calling thread into the network namespace behind the descriptor."""
    _checked(_libc.setns(descriptor, CLONE_NEWNET), "setns")


def new_namespace() -> None:
    """Moves the calling thread into a new network namespace."""
    _checked(_libc.unshare(CLONE_NEWNET), "unshare")


def mount(source: str, target: str, flags: int) -> None:
    _checked(
        _libc.mount(source.encode(), target.encode(), b"none", ctypes.c_ulong(flags), None),
        f"mount {target}",
    )


def unmount(target: str) -> None:
    """Unmounts lazily: removes the mount now, and frees it when its last user is gone."""
    _checked(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def _bpf(command: int, attributes: bytes, what: str) -> int:
    number = BPF_SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(f"{what}: the bpf system call number on {platform.machine()} is not known")
    memory = ctypes.create_string_buffer(attributes, len(attributes))
    result = _libc.syscall(ctypes.c_long(number), command, memory, ctypes.c_uint(len(attributes)))
    return _checked(result, what)


def create_array(name: str, value_bytes: int, entries: int) -> int:
    """Creates an array map; returns its descriptor."""
    attributes = struct.pack(
        "<7I16s", MAP_ARRAY, 4, value_bytes, entries, 0, 0, 0, name.encode()[:15]
    )
    return _bpf(MAP_CREATE, attributes, "bpf: a map")


def open_map(map_id: int) -> int:
    """Opens a map by its id; an attached program or another descriptor keeps it alive."""
    return _bpf(MAP_BY_ID, struct.pack("<3I", map_id, 0, 0), f"bpf: map {map_id}")


def map_info(descriptor: int) -> tuple[int, int, int, str]:
    """The map's id, bytes per value, number of entries and name."""
    info = ctypes.create_string_buffer(40)
    attributes = struct.pack("<IIQ", descriptor, len(info), ctypes.addressof(info))
    _bpf(INFO, attributes, "bpf: information about a map")
    _, map_id, _, value_bytes, entries, _, name = struct.unpack("<6I16s", info.raw)
    return map_id, value_bytes, entries, name.rstrip(b"\0").decode()


def read_map(descriptor: int, index: int, value_bytes: int) -> bytes:
    key = ctypes.c_uint32(index)
    value = ctypes.create_string_buffer(value_bytes)
    _bpf(
        MAP_LOOKUP,
        struct.pack("<IIQQQ", descriptor, 0, ctypes.addressof(key), ctypes.addressof(value), 0),
        "bpf: reading a map",
    )
    return value.raw


def write_map(descriptor: int, index: int, value: bytes) -> None:
    key = ctypes.c_uint32(index)
    memory = ctypes.create_string_buffer(value, len(value))
    _bpf(
        MAP_UPDATE,
        struct.pack("<IIQQQ", descriptor, 0, ctypes.addressof(key), ctypes.addressof(memory), 0),
        "bpf: writing a map",
    )


def load_classifier(name: str, code: bytes) -> int:
    """Loads a cls_bpf program; returns its descriptor. An error contains the verifier's log."""
    memory = ctypes.create_string_buffer(code, len(code))
    license_text = ctypes.create_string_buffer(LICENSE)

    def attributes(log: ctypes.Array[ctypes.c_char] | None) -> bytes:
        return struct.pack(
            "<IIQQIIQII16s",
            PROG_SCHED_CLS,
            len(code) // 8,
            ctypes.addressof(memory),
            ctypes.addressof(license_text),
            0 if log is None else 1,
            0 if log is None else len(log),
            0 if log is None else ctypes.addressof(log),
            0,
            0,
            name.encode()[:15],
        )

    try:
        return _bpf(PROG_LOAD, attributes(None), "bpf: a program")
    except OSError as error:
        log = ctypes.create_string_buffer(LOG_BYTES)
        try:
            return _bpf(PROG_LOAD, attributes(log), "bpf: a program")
        except OSError:
            lines = log.value.decode(errors="replace").strip().splitlines()
            reason = " / ".join(lines[-3:])
            raise OSError(error.errno, f"{error.strerror} {reason}".strip()) from None
