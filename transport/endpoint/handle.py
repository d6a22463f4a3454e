"""Reads the address in a listener's handle, for messages."""

import ipaddress
import struct

# Where a handle has its address (native/control/handle.cc): family, port, address.
ADDRESS_AT, ADDRESS = 28, struct.Struct("<HH16s")


def place_of(handle: bytes) -> str:
    """The address and port in a listener's handle, or words for it if they cannot be read."""
    family, port, address = ADDRESS.unpack_from(handle, ADDRESS_AT)
    if family not in (4, 6):
        return "the handle's listener"
    return f"{ipaddress.ip_address(address[:4] if family == 4 else address)} port {port}"
