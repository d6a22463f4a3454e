"""Routes of small leaf-spine fabrics, whose ports choose spines at random, as ECMP does."""

from itertools import pairwise

import numpy as np

from transport.plan.routes import Routes


def clos(
    leaves: int, per_leaf: int, spines: int, paths: int, seed: int = 1, sides: tuple[str, ...] = ()
) -> Routes:
    """Routes between all hosts (and sides); each side has leaves and spines of its own."""
    random = np.random.default_rng(seed)
    number: dict[str, int] = {}
    of, ports = {}, {}
    for side in sides or ("",):
        mark = f"/{side}" if side else ""
        ends = [(at // per_leaf, f"host{at}{mark}") for at in range(leaves * per_leaf)]
        for leaf, source in ends:
            for other, target in ends:
                for path in range(paths if source != target else 0):
                    spine = int(random.integers(spines))
                    nodes = [source, f"leaf{leaf}{side}", f"spine{spine}{side}"]
                    nodes += [f"leaf{other}{side}", target]
                    if leaf == other:
                        del nodes[2:4]
                    links = [f"{a}>{b}" for a, b in pairwise(nodes)]
                    of[source, target, path] = tuple(
                        number.setdefault(link, len(number)) for link in links
                    )
                    ports[source, target, path] = 20_000 + path // 8, 20_000 + path % 8
    addresses = {end: f"10.0.0.{at}" for at, end in enumerate(dict.fromkeys(a for a, _, _ in of))}
    return Routes(tuple(number), of, ports, addresses)
