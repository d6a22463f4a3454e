"""Writes a network as the TOML file that networks.load() reads."""

from __future__ import annotations

import json

from transport.estimate.networks import NONE, Link, Network


def text_of(network: Network) -> str:
    """The profile as TOML."""
    lines = [f"name = {_text(network.name)}", f"source = {_text(network.source)}"]
    lines.append(f"gpus_per_node = {network.gpus_per_node}")
    if network.notes:
        lines.append(f"notes = [{', '.join(map(_text, network.notes))}]")
    for key, link in (("between", network.between), ("inside", network.inside),
                      ("pairs", network.pairs)):  # fmt: skip
        if link is not None:
            lines += ["", *_link(key, link)]
    if network.slowdown != NONE:
        slow = network.slowdown
        lines += ["", "[slowdown]", f"computation = {slow.computation:.4g}",
                  f"communication = {slow.communication:.4g}"]  # fmt: skip
    found = network.calibrated
    if found is not None:
        lines += [
            "", "[calibrated]", f"sizes_bytes = {list(found.sizes_bytes)}",
            f"ranks = {list(found.ranks)}", f"median_error = {found.median_error:.4g}",
            f"p95_error = {found.p95_error:.4g}",
            f"operations = [{', '.join(map(_text, found.operations))}]",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _link(key: str, link: Link) -> list[str]:
    lines = [f"[{key}]", f"bytes_per_s = {link.bytes_per_s:.6g}"]
    if link.launch_ns:
        lines.append(f"launch_ns = {link.launch_ns:.6g}")
    for one in link.protocols:
        lines += ["", f"[[{key}.protocols]]", f"name = {_text(one.name)}",
                  f"base_ns = {one.base_ns:.6g}", f"step_ns = {one.step_ns:.6g}",
                  f"share = {one.share:.6g}"]  # fmt: skip
    return lines


def _text(value: str) -> str:
    return json.dumps(value)  # a JSON string is a TOML string
