"""Finds places that lose packets over the whole trace, too few in any three windows."""

from __future__ import annotations

import numpy as np

from transport.diagnose import queues
from transport.diagnose.finding import Finding
from transport.diagnose.loss_places import (
    LOSS_ADVICE,
    LOSS_QUERY,
    LOSS_RATE_MIN,
    LOSSES_MIN,
    OVERFLOW_ADVICE,
    SINGLY,
    lossiest,
    lossy_somewhere,
    rate_of,
    singly,
)
from transport.diagnose.losses import HOST_LOSS_RATE, RANDOM_WINDOWS, evidence_of_losses
from transport.diagnose.seen import Seen, confidence_of
from transport.ground.units import percent

CONTRAST = 10.0  # a place loses so many times as many single packets as all others


def rarely_lossy(seen: Seen) -> Finding | None:
    """A link or NIC that loses single packets over the whole trace.

    Only few ranks may send over a link, so it is told from others by its rate.
    """
    paths = seen.paths
    if paths is None or not len(paths.ends) or seen.windows.count < RANDOM_WINDOWS:
        return None
    # Full queues lose several in a row, here and there: only what is lost singly is compared.
    lost = paths.alone.sum(axis=0)
    sent = np.maximum(paths.sent.sum(axis=0), lost)
    found = lossiest(seen, paths, lost, sent) if lost.sum() >= LOSSES_MIN else None
    if found is None or found.place.kind not in ("link", "nic"):
        return None
    place, mine, every = found.place, found.paths, slice(0, seen.windows.count)
    often = int((paths.alone[:, mine].sum(axis=1) > 0).sum())
    least = LOSS_RATE_MIN if seen.facts.simulated else HOST_LOSS_RATE
    alone = singly(paths, every, mine, found.rate)
    if found.rate < least or alone < SINGLY or often < RANDOM_WINDOWS:
        return None
    # Flows that meet in front of a receiver fill its queue.
    contrast = CONTRAST * (2 if place.side == "receive" else 1)
    if found.rate < contrast * found.other_rate or queues.are_full(paths, every, mine, lost > 0):
        return None
    share = float(lost[mine].sum() / paths.lost[:, mine].sum())
    return Finding(
        "network_loss",
        place,
        *seen.windows.span(0, seen.windows.count - 1),
        confidence_of(found.rate / LOSS_RATE_MIN),
        True,
        f"{evidence_of_losses(found, lost, sent, False)} It lost packets in {often} of "
        f"{seen.windows.text_of(seen.windows.count)}, {percent(share, 0)} of them singly.",
        LOSS_QUERY,
        LOSS_ADVICE[place.kind],
        weight=float(lost[mine].sum()),
        indirect=True,
        more={"downs": 0},
    )


def lossy_network(seen: Seen) -> Finding | None:
    """Losses that a real job has all the time, wherever they are: no network should lose 1 %.

    Simulated queues may be so small that they overflow in each iteration.
    """
    paths = seen.paths
    if paths is None or seen.facts.simulated or seen.windows.count < RANDOM_WINDOWS:
        return None
    lost, sent = paths.lost.sum(axis=0), np.maximum(paths.sent, paths.lost).sum(axis=0)
    found = lossiest(seen, paths, lost, sent) or lossy_somewhere(lost, sent)
    if lost.sum() < LOSSES_MIN or found is None:
        return None
    place, mine, every = found.place, found.paths, slice(0, seen.windows.count)
    each = paths.lost[:, mine].sum(axis=1), np.maximum(paths.sent, paths.lost)[:, mine].sum(axis=1)
    if found.rate < HOST_LOSS_RATE or np.median(rate_of(*each)) < HOST_LOSS_RATE:
        return None
    bursts = singly(paths, every, mine, found.rate) < SINGLY
    alone = float(paths.alone[:, mine].sum() / lost[mine].sum())
    return Finding(
        "congestion" if bursts else "network_loss",
        place,
        *seen.windows.span(0, seen.windows.count - 1),
        0.8,
        True,
        f"{place.name} lost {lost[mine].sum():.0f} of about {sent[mine].sum():.0f} segments "
        f"({percent(found.rate, 2)}), in at least half of the job's time, {percent(alone, 0)} of "
        "them singly. Full queues and sockets lose several in a row, bad cables single ones.",
        LOSS_QUERY,
        f"{OVERFLOW_ADVICE if bursts else LOSS_ADVICE[place.kind]} weft doctor --peer measures the "
        "loss between two hosts.",
        weight=float(lost[mine].sum()),
        more={"downs": 0},
    )
