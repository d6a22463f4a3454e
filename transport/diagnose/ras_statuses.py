"""What statuses of NCCL's RAS tell over time: who is who, what moves, which ranks are behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from transport.trace.nccl_ras import (
    Process,
    RasComm,
    RasMissing,
    RasRank,
    RasStatus,
    is_known,
)
from transport.trace.notes import ranges

NAMED_MAX = 4
Counts = Mapping[str, int]
Member = RasRank | RasMissing


@dataclass(frozen=True)
class Behind:
    """Ranks of a communicator that launched less than others. waiting: launched more than these."""

    comm: RasComm
    least: tuple[RasRank, ...]
    waiting: tuple[RasRank, ...]

    @property
    def own(self) -> Counts:
        return self.least[0].counts

    @property
    def next_ones(self) -> dict[str, int]:
        """Function -> the number of the first operation that the waiting ranks launched alone."""
        nearest = min(self.waiting, key=lambda one: one.launched)
        pairs = ((name, self.own.get(name, 0), count) for name, count in nearest.counts.items())
        return {name: own + 1 for name, own, count in pairs if count > own}


@dataclass(frozen=True)
class Differs:
    """Ranks that launched more of one function and less of another than the others did."""

    comm: RasComm
    odd: tuple[RasRank, ...]
    usual: tuple[RasRank, ...]


class Earlier:
    """A communicator in an earlier status, by its ranks."""

    def __init__(self, comm: RasComm) -> None:
        self._counts = {one.rank: one.counts for one in comm.ranks}
        self.missing = {one.rank for one in comm.missing}

    def had(self, one: RasRank) -> bool:
        """Whether the rank answered then, and had launched as much."""
        return self._counts.get(one.rank) == one.counts

    def alike(self, comm: RasComm) -> bool:
        """Whether all ranks of the communicator had launched as much then."""
        return all(self.had(one) for one in comm.ranks)


class Statuses:
    """The statuses of one job in the order of their times, the last one the present."""

    def __init__(self, each: Sequence[RasStatus]) -> None:
        self.each = each
        self.last = each[-1]
        self._by_key = [{comm.key: Earlier(comm) for comm in one.comms} for one in each[:-1]]
        self._spots: dict[Hashable, list[tuple[RasComm, RasRank]]] = {}
        for comm in self.last.comms:
            for one in comm.ranks:
                self._spots.setdefault(identity(comm, one), []).append((comm, one))

    @cached_property
    def comms(self) -> tuple[RasComm, ...]:
        """The communicators that the job still uses."""
        return tuple(one for one in self.last.comms if not one.ending)

    @cached_property
    def _whole(self) -> frozenset[str]:
        """The communicators whose ranks are those of the job."""
        world = self.last.world
        return frozenset(one.key for one in self.last.comms if world and one.members == world)

    def rank_of(self, comm: RasComm, one: Member) -> int:
        """The rank in the job; -1: not known."""
        own = one.rank if comm.key in self._whole else -1
        return self.last.world.get(one.process, own) if is_known(one.process) else own

    def ranks_of(self, comm: RasComm, ones: Iterable[Member]) -> tuple[int, ...]:
        """The ranks in the job in increasing order; empty: one is not known."""
        ranks = sorted(self.rank_of(comm, one) for one in ones)
        return tuple(ranks) if ranks and ranks[0] >= 0 else ()

    def named(self, comm: RasComm, ones: Sequence[Member]) -> str:
        """Ranks as text: "ranks 0, 2-3", or without ranks of the job by host and process."""
        ranks = self.ranks_of(comm, ones)
        if ranks:
            return f"rank{'s' * (len(ranks) != 1)} {ranges(ranks)}"
        shown = ", ".join(
            where(one.process) if is_known(one.process) else f"rank {one.rank} of {title(comm)}"
            for one in ones[:NAMED_MAX]
        )
        return f"{shown} and {len(ones) - NAMED_MAX} more" if ones[NAMED_MAX:] else shown

    def still_ns(self, comm: RasComm) -> int:
        """For how long, up to the last status, no rank of the communicator launched anything."""
        return self._lasted_ns(comm, lambda earlier: earlier.alike(comm))

    def missing_ns(self, comm: RasComm, one: RasMissing) -> int:
        """For how long the rank was missing, and no other one launched anything."""
        return self._lasted_ns(
            comm, lambda earlier: one.rank in earlier.missing and earlier.alike(comm)
        )

    def idle_ns(self, who: Hashable) -> int:
        """For how long a process launched nothing in any communicator, up to the last status.

        who: its identity.
        """
        every = [self._unchanged_ns(comm, one) for comm, one in self._spots.get(who, [])]
        return min(every, default=0)

    def _unchanged_ns(self, comm: RasComm, one: RasRank) -> int:
        return self._lasted_ns(comm, lambda earlier: earlier.had(one))

    def _lasted_ns(self, comm: RasComm, lasts: Callable[[Earlier], bool]) -> int:
        since_ns = self.last.time_ns
        for status, comms in zip(self.each[-2::-1], self._by_key[::-1], strict=True):
            earlier = comms.get(comm.key)
            if earlier is None or status.time_ns < 0 or not lasts(earlier):
                break
            since_ns = status.time_ns
        return self.last.time_ns - since_ns

    @property
    def _compared(self) -> list[RasComm]:
        """The communicators of whose ranks the same is counted."""
        return [one for one in self.comms if len({frozenset(r.counts) for r in one.ranks}) == 1]

    def behind(self) -> list[Behind]:
        """Communicators in which some ranks launched less than others, of the same functions."""
        made = []
        for comm in self._compared:
            fewest = min((one.launched for one in comm.ranks), default=0)
            least = tuple(one for one in comm.ranks if one.launched == fewest)
            waiting = tuple(one for one in comm.ranks if one.launched > fewest)
            few, more = ({_key(one) for one in part} for part in (least, waiting))
            if waiting and all(_at_most(dict(a), dict(b)) for a in few for b in more):
                made.append(Behind(comm, least, waiting))
        return made

    def differing(self) -> list[Differs]:
        """Communicators in which ranks launched different functions. Ranks of one communicator make
        the same calls in the same order, so none is ahead in one function and behind in another."""
        made = []
        for comm in self._compared:
            kinds = Counter(_key(one) for one in comm.ranks)
            usual = max(kinds, key=lambda kind: kinds[kind], default=())
            others = {kind for kind in kinds if not _ordered(dict(usual), dict(kind))}
            odd = tuple(one for one in comm.ranks if _key(one) in others)
            if odd:
                same = tuple(one for one in comm.ranks if _key(one) == usual)
                made.append(Differs(comm, odd, same))
        return made


def identity(comm: RasComm, one: Member) -> Hashable:
    """The process of a rank; if RAS does not know it, the rank itself."""
    return one.process if is_known(one.process) else (comm.key, one.rank)


def title(comm: RasComm) -> str:
    """A communicator as its NCCL log names it."""
    return f"communicator {comm.comm_id:#x}"


def where(process: Process) -> str:
    return f"process {process[1]} on {process[0]}"


def _key(one: RasRank) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(one.counts.items()))


def _at_most(a: Counts, b: Counts) -> bool:
    return all(a.get(name, 0) <= b.get(name, 0) for name in a.keys() | b.keys())


def _ordered(a: Counts, b: Counts) -> bool:
    return _at_most(a, b) or _at_most(b, a)
