"""Adds to a simulated host's trace how its messages crossed the network: stripes, paths, events."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transport import native
from transport.plan.routes import Routes
from transport.sim.network import Array, Network
from transport.sim.planned import fabric_of
from transport.sim.traced import Traced
from transport.trace.write import TraceFile

PATHS_NS = 1_000_000  # time between records of a path that carries something
SHARES = 33  # shares of a stripe's segments: of each of paths 0 to 31, and of all other paths
NO_NODE = 0xFFFF_FFFF


def add_stripes(
    file: TraceFile,
    traced: Traced,
    transfers: Array,
    *,
    connection: Array,
    message: Array,
    size_bytes: Array,
    posted_ns: Array,
    end_ns: Array,
) -> None:
    """Adds a stripe for each of the host's sends; all arrays have an element for each send."""
    rows = traced.transfers[transfers]
    sent = rows["segments"].astype(np.float64)
    shares = np.rint(255 * rows["by_path"] / np.maximum(sent, 1)[:, None]).astype(np.uint8)
    by_path = {f"path_{at}": shares[:, at] for at in range(SHARES - 1)}
    file.put(
        "stripe",
        file.ids(len(rows)),
        end_ns,
        message=message,
        bytes=size_bytes,
        posted_ns=posted_ns,
        first_ns=np.maximum(rows["first_ns"], 0),
        last_ns=np.maximum(rows["last_ns"], 0),
        connection=connection,
        segments=rows["segments"],
        resent=rows["resent"],
        sends=1,
        path_others=shares[:, SHARES - 1],
        **by_path,
    )


def add_paths(file: TraceFile, rows: Array, names: Sequence[str]) -> None:
    """Adds the host's records of its paths; `names` are the names of nodes."""
    peers = {int(peer): file.text(names[peer]) for peer in np.unique(rows["peer"])}
    file.put(
        "path",
        file.ids(len(rows)),
        rows["at_ns"],
        bytes_sent=rows["bytes_sent"],
        segments_sent=rows["segments_sent"],
        segments_lost=rows["segments_lost"],
        rtt_ns=rows["rtt_ns"],
        peer=[peers[peer] for peer in rows["peer"].tolist()],
        path=rows["path"],
        usable=rows["usable"],
    )


def add_events(
    file: TraceFile, rows: Array, names: Sequence[str], connection_of: dict[int, int]
) -> None:
    """Adds the host's events; connection_of: number of a simulated connection -> its record."""
    kinds = {
        int(kind): file.text(native.Fabric.event_name(int(kind)) or "")
        for kind in np.unique(rows["kind"])
    }
    peers = {
        int(peer): 0 if peer == NO_NODE else file.text(names[peer])
        for peer in np.unique(rows["peer"])
    }
    file.put(
        "event",
        file.ids(len(rows)),
        rows["at_ns"],
        value=rows["value"],
        what=[kinds[kind] for kind in rows["kind"].tolist()],
        peer=[peers[peer] for peer in rows["peer"].tolist()],
        connection=[connection_of.get(stream, 0) for stream in rows["stream"].tolist()],
        path=rows["path"],
        status=rows["status"],
    )


def routes_of(traced: Traced, network: Network) -> Routes:
    """The links of the paths between all hosts that communicate."""
    names = network.node_names
    links = tuple(network.port_name(port) for port in range(len(network.ports)))
    of = {}
    rows = zip(traced.route_ends.tolist(), traced.route_ports.tolist(), strict=True)
    for (source, target, path), ports in rows:
        crossed = tuple(port for port in ports if port >= 0)
        if crossed:  # no route is fixed where switches choose by their queues
            of[names[source], names[target], path] = crossed
    return Routes(links, of, fabric=fabric_of(network))
