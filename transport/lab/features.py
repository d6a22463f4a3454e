"""Checks whether this process and this kernel can build a lab.

It tries each kernel feature in a temporary namespace; version numbers are not compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transport.lab import impair, kernel, namespace, netlink
from transport.lab.model import LabError, LabModel, Link

CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


def require_rights() -> None:
    """Raises LabError unless this process may create namespaces, devices and eBPF programs."""
    status = Path("/proc/self/status").read_text()
    line = next(one for one in status.splitlines() if one.startswith("CapEff:"))
    held = int(line.split()[1], 16)
    missing = [name for name, bit in CAPABILITIES.items() if not held >> bit & 1]
    if missing:
        raise LabError(
            f"weft lab needs {' and '.join(missing)}, which this process lacks: "
            "run it as root (sudo)"
        )


def require_kernel(model: LabModel) -> None:
    """Raises LabError unless the kernel has the features that the model needs."""
    delayed = [name for name in model.link_names() if model.link(name).delay_ns]
    try:
        namespace.in_scratch(lambda: _try_all(delayed[:1]))
    except OSError as error:
        raise LabError(
            f"cannot create a network namespace: {error}; run outside of a container"
        ) from None


def _try_all(delayed: list[str]) -> None:
    with netlink.speaking() as link:
        pair = {"ifname": "a", "kind": "veth", "peer": "b"}
        _need("veth devices", "CONFIG_VETH", lambda: link.link("add", **pair))
        _need(
            "the token bucket filter (sch_tbf)",
            "CONFIG_NET_SCH_TBF",
            lambda: netlink.shape(link, "a", Link(), "add"),
        )
        _need("the clsact hook", "CONFIG_NET_SCH_INGRESS", lambda: netlink.add_hook(link, "a"))
        _need("eBPF classifiers (cls_bpf)", "CONFIG_NET_CLS_BPF", lambda: _try_program(link))
        if delayed:
            _need(
                f"netem, for delay_ns of {delayed[0]} (or leave delay_ns out)",
                "CONFIG_NET_SCH_NETEM",
                lambda: netlink.shape(link, "a", Link(delay_ns=1_000_000), "change"),
            )


def _try_program(link: Any) -> None:
    held: list[int] = []
    try:
        held.append(kernel.create_array("weft_try", impair.ORDER_BYTES, 1))
        held.append(kernel.create_array("weft_try", impair.STATE_BYTES, 1))
        code = impair.program(orders_map=held[0], state_map=held[1], index=0)
        held.append(kernel.load_classifier("weft_try", code))
        netlink.attach(link, "a", held[2], netlink.EGRESS)
    finally:
        for descriptor in held:
            os.close(descriptor)


def _need(what: str, option: str, attempt: Callable[[], object]) -> None:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        attempt()
    except (NetlinkError, OSError) as error:
        raise LabError(
            f"this kernel lacks {what}: {error}; load the module or use a kernel with {option}"
        ) from None
