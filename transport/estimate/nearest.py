"""What to change where no plan fits: GPUs, the batch, sequences, or the kind of GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transport.estimate.gpus import Gpu, gpu, names
from transport.estimate.models import Model
from transport.estimate.networks import Network
from transport.estimate.plan import RANKS_MAX, PlanError
from transport.estimate.search import Fitting, Searched, fitting, search
from transport.estimate.space import Space

MORE = (2, 4, 8)  # times as many, of what might make a plan fit
TRIED_MAX = 8  # numbers of GPUs, or of sequences, that are tried
ESTIMATED = 10  # plans that are estimated to find a fast one


@dataclass(frozen=True)
class Change:
    """A change of one option that makes a plan fit. option: as users give it; inputs: with it."""

    option: str
    model: Model
    space: Space

    def fastest(self, gpu: Gpu, network: Network) -> Fitting | None:
        """A fast plan with the change; None: steps are too long to schedule."""
        try:
            found = search(self.model, gpu, network, self.space, keep=1, limit=ESTIMATED)
        except PlanError:
            return None
        return found.best[0] if found.best else None


def changes(model: Model, gpu: Gpu, network: Network, space: Space) -> list[Change]:
    """The smallest change of each option that makes a plan fit, the number of GPUs first."""
    made = []
    for kind in (
        _of_gpus(model, network, space),
        _of_batch(model, space),
        _of_context(model, space),
        _of_sequence(model, space),
    ):
        fits = (one for one in kind if _fits(one, gpu, network))
        made += [one for one in (next(fits, None),) if one is not None]
    return made


def larger_gpus(found: Searched, gpu_now: Gpu, space: Space) -> list[str]:
    """The shipped GPUs with more memory that the smallest plan fits, the smallest of them first."""
    if found.smallest is None:
        return []
    smallest = space.needed_bytes(found.smallest.plan, found.smallest.memory)
    need = max(smallest, gpu_now.memory_bytes + 1)
    known = sorted((gpu(name) for name in names()), key=lambda one: one.memory_bytes)
    return [one.name for one in known if one.memory_bytes >= need]


def _fits(change: Change, gpu: Gpu, network: Network) -> bool:
    try:
        return bool(fitting(change.model, gpu, network, change.space).best)
    except PlanError:  # the space is too large, or no context divides the GPUs
        return False


def _of_gpus(model: Model, network: Network, space: Space) -> Iterator[Change]:
    """Whole nodes, and parts of one, near the number; then several times as many."""
    gpus, node = space.gpus, network.gpus_per_node
    parts = {one for one in range(1, node) if node % one == 0}
    whole = {(gpus // node + more) * node for more in (-1, 0, 1, 2)}
    for count in _near(gpus, parts | whole | {times * gpus for times in MORE}, RANKS_MAX):
        yield Change(f"--gpus {count}", model, replace(space, gpus=count))


def _of_batch(model: Model, space: Space) -> Iterator[Change]:
    """Batches near the number that the GPUs, or powers of two, divide."""
    batch, gpus = space.global_batch, space.gpus
    whole = {batch // gpus * gpus, -(-batch // gpus) * gpus}
    powers = {1 << (batch.bit_length() - 1), 1 << batch.bit_length()}
    for count in _near(batch, whole | powers, 1 << 40):
        yield Change(f"--batch {count}", model, replace(space, global_batch=count))


def _of_context(model: Model, space: Space) -> Iterator[Change]:
    for times in MORE:
        yield Change(f"--context {times}", model, replace(space, contexts=(times,)))


def _of_sequence(model: Model, space: Space) -> Iterator[Change]:
    for times in MORE:
        sequence = model.sequence // times
        if sequence:
            yield Change(f"--sequence {sequence}", replace(model, sequence=sequence), space)


def _near(now: int, others: set[int], most: int) -> list[int]:
    """The numbers from 1 to `most`, nearest first, larger ones first if they are as near."""
    possible = [one for one in others if 1 <= one <= most and one != now]
    return sorted(possible, key=lambda one: (abs(one - now), -one))[:TRIED_MAX]
