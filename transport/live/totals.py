"""Counters of peers, paths and flows that never decrease, even if rows of the page are removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from transport.live.rows import grown, number
from transport.telemetry import Page, Row

# Scope, engine, address of the peer, number of the path (-1 for other scopes).
Key = tuple[str, int, str, int]
ENDED = "\0"  # the address under which the counts of all removed peers are kept


class Totals:
    """The counter totals of one telemetry page, by engine, peer and path.

    Rows of peers with the same address on one engine are added. What a row counted between the
    last update and its removal is not known.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], Row] = {}
        self._sums: dict[Key, dict[str, int]] = {}

    @property
    def sums(self) -> Mapping[Key, Mapping[str, int]]:
        """The counts. Those of removed peers have the address ENDED."""
        return self._sums

    def update(self, page: Page, from_zero: bool = False) -> None:
        """Adds what the rows of the page counted since the last update.

        from_zero: count nothing for rows that were not there at the last update.
        """
        seen: dict[tuple[str, int], Row] = {}
        present = set()
        for key, row in keyed(page):
            present.add(key[1:3])
            seen[key[0], row.index] = row
            sums = self._sums.setdefault(key, {})
            before = self._before.get((key[0], row.index))
            same = before is not None and before.generation == row.generation
            for name, value in row.counters.items():
                if same and before is not None:
                    more = grown(before.counters.get(name, 0), value)
                else:
                    more = 0 if from_zero else max(0, value)
                sums[name] = sums.get(name, 0) + more
        self._before = seen
        for key in list(self._sums):
            if key[1:3] not in present and key[2] != ENDED:
                self._end(key)

    def _end(self, key: Key) -> None:
        scope, engine, _, path = key
        kept = self._sums.setdefault((scope, engine, ENDED, min(path, 0)), {})
        for name, value in self._sums.pop(key).items():
            kept[name] = kept.get(name, 0) + value


def keyed(page: Page) -> Iterator[tuple[Key, Row]]:
    """Every row of a peer, path or flow, with its key."""
    peers = {peer.index: peer for peer in page.peers}
    for peer in page.peers:
        engine, address = number(peer, "engine"), str(peer.state.get("address", ""))
        yield ("peer", engine, address, -1), peer
        for at, path in enumerate(peer.paths):
            yield ("path", engine, address, at), path
    for flow in page.flows:
        of = peers.get(number(flow, "peer", -1))
        address = str(of.state.get("address", "")) if of is not None else ""
        yield ("flow", number(flow, "engine"), address, -1), flow
