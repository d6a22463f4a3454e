"""What the telemetry pages of this host say about why a peer does not answer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from transport.ground.addresses import is_own
from transport.live.rows import age_ns, number, paths_down
from transport.telemetry import Page, PeerRow

# Time after which a peer counts as silent. After this time a process shows that it waits for a
# receive, even if other connections transfer.
LONG_NS = 1_000_000_000
# A packet that arrived this short a time ago shows that the peer's process runs.
FRESH_NS = 200_000_000
NAMED_MAX = 3  # processes that a text names
# One host cannot tell these causes apart by silence alone.
CAUSES = "its process is stopped or gone, or the network to it is cut"


class Evidence:
    """All telemetry pages of one reading, as evidence about a peer that is silent.

    Pages of other PID namespaces are left out: their addresses may be those of other networks.
    """

    def __init__(self, pages: Iterable[Page] = ()) -> None:
        self._pages = [page for page in pages if page.process_state != "unknown"]
        self._own: dict[str, bool] = {}

    def cause(self, page: Page, peer: PeerRow, still_ns: int) -> str:
        """Why a peer may not answer, and what the pages say for one of the causes.

        still_ns: how long the flow that waits for the peer has made no progress.
        """
        heard_ns = age_ns(page, peer, "heard_ns")
        if heard_ns is not None and heard_ns < FRESH_NS and still_ns >= LONG_NS:
            return (
                "packets from it arrive, so its process runs: look at the network from here to it"
            )
        if page.process_state == "unknown":
            return CAUSES
        address = str(peer.state.get("address", ""))
        found = self.stopped(page, peer)
        if not found and self._others_are_heard(page, peer, address):
            found = f"; other connections to {address} are answered: look at that process first"
        if not found and (silent := self._silent(page) - {address}):
            more = (
                "another address does" if len(silent) == 1 else f"{len(silent)} other addresses do"
            )
            found = f"; {more} not answer either: look at the network of this host first"
        return CAUSES + found

    def stopped(self, page: Page, peer: PeerRow) -> str:
        """Text about stopped processes of this host that may be the peer; "" if there are none."""
        if not self._is_own(str(peer.state.get("address", ""))):
            return ""
        pids = sorted({pid for pid in self._stopped_pids if pid != page.pid})
        if not pids:
            return ""
        named = ", ".join(map(str, pids[:NAMED_MAX])) + (", ..." if pids[NAMED_MAX:] else "")
        what = f"process {named} of this host is" if len(pids) == 1 else f"processes {named} are"
        return f"; {what} stopped: look there first"

    def _is_own(self, address: str) -> bool:
        if address not in self._own:
            self._own[address] = is_own(address)
        return self._own[address]

    @cached_property
    def _stopped_pids(self) -> set[int]:
        """Stopped processes that have a peer on this host, so may be the peer of another one."""
        return {
            page.pid
            for page in self._pages
            if page.process_state == "stopped"
            and any(self._is_own(str(peer.state.get("address", ""))) for peer in page.peers)
        }

    @cached_property
    def _heard_ns(self) -> dict[str, int]:
        """Address -> when its last packet to any process of this host arrived."""
        found: dict[str, int] = {}
        for page in self._pages:
            for peer in page.peers:
                address = str(peer.state.get("address", ""))
                found[address] = max(found.get(address, 0), number(peer, "heard_ns"))
        return found

    def _others_are_heard(self, page: Page, peer: PeerRow, address: str) -> bool:
        """Whether another connection with this address is heard, long after this one last was."""
        at_ns = self._heard_ns.get(address, 0)
        later_ns = at_ns - max(number(peer, "heard_ns"), 0)
        return at_ns > 0 and later_ns >= LONG_NS and page.read_ns - at_ns < LONG_NS

    def _silent(self, page: Page) -> set[str]:
        """Addresses that answer on no path; empty if a packet of any address arrives."""
        if any(at_ns > 0 and page.read_ns - at_ns < LONG_NS for at_ns in self._heard_ns.values()):
            return set()
        return {
            str(peer.state.get("address", ""))
            for one in self._pages
            for peer in one.peers
            if number(peer, "waited_for") and peer.paths and paths_down(peer) == len(peer.paths)
        }
