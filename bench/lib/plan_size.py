"""Measures how long a plan for a thousand hosts takes, and how good it is."""

from __future__ import annotations

import time

import numpy as np

from bench.lib.common import Config
from transport.plan.assign import assign
from transport.plan.routes import Routes

PAIRS = 64  # pairs of UDP ports that were probed for each pair of hosts
SENT_BYTES = 1_000_000_000


def routes_of(leaves: int, per_leaf: int, spines: int) -> Routes:
    """Each host sends to the host of the same index at the next leaf, each pair of UDP ports
    over a random spine.
    """
    random = np.random.default_rng(1)
    number: dict[str, int] = {}
    of: dict[tuple[str, str, int], tuple[int, ...]] = {}
    ports: dict[tuple[str, str, int], tuple[int, int]] = {}
    for host in range(leaves * per_leaf):
        leaf, far = host // per_leaf, (host + per_leaf) % (leaves * per_leaf)
        for path, spine in enumerate(random.integers(spines, size=PAIRS).tolist()):
            nodes = [f"host{host}", f"leaf{leaf}", f"spine{spine}", f"leaf{far // per_leaf}"]
            links = zip(nodes, [*nodes[1:], f"host{far}"], strict=True)
            key = f"host{host}", f"host{far}", path
            of[key] = tuple(number.setdefault(">".join(link), len(number)) for link in links)
            ports[key] = 20_000 + path // 8, 20_000 + path % 8
    return Routes(tuple(number), of, ports)


def measure_size(paths: int, leaves: int = 64, per_leaf: int = 16, spines: int = 16) -> Config:
    routes = routes_of(leaves, per_leaf, spines)
    sent = dict.fromkeys(((source, target) for source, target, _ in routes.of), SENT_BYTES)
    begin_s = time.perf_counter()
    made = assign(routes, sent, paths=paths)
    return {
        "hosts": leaves * per_leaf,
        "spines": spines,
        "paths": paths,
        "assign_s": time.perf_counter() - begin_s,
        "busiest": made.busiest_bytes / made.bound_bytes,
        "ecmp": made.ecmp_bytes / made.bound_bytes,
    }
