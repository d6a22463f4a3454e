"""Writes a network as the TOML file that networks.load() reads."""

from __future__ import annotations

from typing import Any

from transport.estimate.networks import NONE, Link, Network
from transport.ground import toml
from transport.ground.toml import rounded


def text_of(network: Network) -> str:
    """The profile as TOML."""
    tables: dict[str, Any] = {
        "name": network.name,
        "source": network.source,
        "gpus_per_node": network.gpus_per_node,
    }
    if network.notes:
        tables["notes"] = network.notes
    links = {"between": network.between, "inside": network.inside, "pairs": network.pairs}
    tables |= {key: _link(link) for key, link in links.items() if link is not None}
    if network.slowdown != NONE:
        slow = network.slowdown
        tables["slowdown"] = {
            "computation": rounded(slow.computation, 4),
            "communication": rounded(slow.communication, 4),
        }
    found = network.calibrated
    if found is not None:
        tables["calibrated"] = {
            "sizes_bytes": found.sizes_bytes,
            "ranks": found.ranks,
            "median_error": rounded(found.median_error, 4),
            "p95_error": rounded(found.p95_error, 4),
            "operations": found.operations,
        }
    return toml.written(tables)


def _link(link: Link) -> dict[str, Any]:
    made: dict[str, Any] = {"bytes_per_s": rounded(link.bytes_per_s, 6)}
    if link.launch_ns:
        made["launch_ns"] = rounded(link.launch_ns, 6)
    made["protocols"] = [
        {
            "name": one.name,
            "base_ns": rounded(one.base_ns, 6),
            "step_ns": rounded(one.step_ns, 6),
            "share": rounded(one.share, 6),
        }
        for one in link.protocols
    ]
    return made
