"""Draws faults over classes and places, with the verdict that each must get (docs/DIAGNOSIS.md)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from bench.lib.diagnosis_jobs import SHAPES, STEP_BEFORE, Job, Tables


@dataclass(frozen=True)
class Drawn:
    """A fault: its tables in the scenario, its class, and its place.

    places: (kind of place, name or rank) pairs of which one must be named.
    hangs: whether the job stands still after it.
    """

    fault: str
    job: Job
    tables: tuple[Tables, ...]
    verdict: str
    places: tuple[tuple[str, str | int], ...]
    hangs: bool = False
    spines: int = 8


def _rank(chance: random.Random, job: Job) -> int:
    return chance.randrange(job.ranks)


def _uplink(chance: random.Random, job: Job, spines: int = 8) -> str:
    return f"leaf{chance.randrange(job.leaves)}-spine{chance.randrange(spines)}"


def slow_nic(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    rank, side = _rank(chance, job), chance.choice(("both", "send", "receive"))
    table = {
        "kind": "slow_nic",
        "rank": rank,
        "at_ns": at_ns,
        "side": side,
        "rate_factor": chance.choice((0.1, 0.25, 0.4)),
    }
    return Drawn("slow_nic", job, (table,), "communication_slow", (("nic", rank),))


def lossy_link(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    link = _uplink(chance, job)
    table = {
        "kind": "lossy_link",
        "link": link,
        "at_ns": at_ns,
        "loss": chance.choice((0.01, 0.03, 0.1)),
    }
    return Drawn("lossy_link", job, (table,), "network_loss", (("link", link),))


def lossy_nic(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    rank = _rank(chance, job)
    host = job.hosts()[rank]
    link = f"leaf{host // job.per_leaf}-host{host}"
    table = {
        "kind": "lossy_link",
        "link": link,
        "at_ns": at_ns,
        "loss": chance.choice((0.01, 0.03)),
    }
    return Drawn("lossy_nic", job, (table,), "network_loss", (("nic", rank),))


def link_down(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    link = _uplink(chance, job)
    table = {"kind": "link_down", "link": link, "at_ns": at_ns}
    return Drawn("link_down", job, (table,), "network_loss", (("link", link),))


def flapping(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    link = _uplink(chance, job)
    table = {
        "kind": "flapping",
        "link": link,
        "at_ns": at_ns,
        "flap_ns": chance.choice((1_000_000, 2_000_000)),
    }
    return Drawn("flapping", job, (table,), "network_loss", (("link", link),))


def nic_down(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    rank = _rank(chance, job)
    host = job.hosts()[rank]
    table = {"kind": "link_down", "link": f"leaf{host // job.per_leaf}-host{host}", "at_ns": at_ns}
    return Drawn("nic_down", job, (table,), "communication_hang", (("nic", rank),), hangs=True)


def straggler(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    rank = _rank(chance, job)
    table = {
        "kind": "straggler",
        "rank": rank,
        "at_step": STEP_BEFORE,
        "compute_factor": chance.choice((1.3, 1.5, 2.0)),
    }
    return Drawn("straggler", job, (table,), "non_communication_slow", (("rank", rank),))


def late_calls(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    rank = _rank(chance, job)
    table = {
        "kind": "late_calls",
        "rank": rank,
        "at_step": STEP_BEFORE,
        "delay_ns": chance.choice((300_000, 700_000, 2_000_000)),
    }
    return Drawn("late_calls", job, (table,), "non_communication_slow", (("rank", rank),))


def absent_rank(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    rank = _rank(chance, job)
    table = {
        "kind": "absent_rank",
        "rank": rank,
        "at_step": STEP_BEFORE,
        "operation": chance.randrange(3),
    }
    places = (("rank", rank),)
    return Drawn("absent_rank", job, (table,), "non_communication_hang", places, hangs=True)


def stopped_process(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    rank = _rank(chance, job)
    table = {"kind": "stopped_process", "rank": rank, "at_ns": at_ns}
    places = (("rank", rank),)
    return Drawn("stopped_process", job, (table,), "non_communication_hang", places, hangs=True)


def crash(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    rank = _rank(chance, job)
    table = {"kind": "crash", "rank": rank, "at_ns": at_ns}
    return Drawn("crash", job, (table,), "crash", (("rank", rank),), hangs=True)


def wrong_call(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    rank = _rank(chance, job)
    # The last communication of a step is a collective in every shape.
    table = {"kind": "wrong_call", "rank": rank, "at_step": STEP_BEFORE, "operation": 99}
    table |= chance.choice(({"size_bytes": 3_000_000}, {"calls": "Broadcast"}))
    return Drawn("wrong_call", job, (table,), "mismatch", (("rank", rank),), hangs=True)


def collision(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    """Flows that leave a leaf are on one or two uplinks of eight."""
    # The ranks of the last stage of a pipeline send to no other leaf.
    leaf = chance.randrange(job.leaves * 3 // 4 if job.shape == "pipeline" else job.leaves)
    spines = chance.sample(range(8), chance.choice((1, 2)))
    links = [f"leaf{leaf}-spine{spine}" for spine in spines]
    places = tuple(("link", link) for link in links)
    return Drawn("collision", job, ({"kind": "collision", "link": links},), "congestion", places)


def second_job(chance: random.Random, job: Job, at_ns: int) -> Drawn:
    """Eight hosts of one leaf send to eight of another, over the four uplinks of the job."""
    job = Job(job.shape, job.ranks, job.seed, guests=8)
    one, other = chance.sample(range(job.leaves), 2)
    table = {
        "kind": "second_job",
        "hosts": job.guests_of(one) + job.guests_of(other),
        "at_ns": at_ns,
        "size_bytes": 20_000_000,
        "repeats": 10,
    }
    places = tuple(
        ("link", f"leaf{leaf}-spine{spine}") for leaf in (one, other) for spine in range(4)
    )
    return Drawn("second_job", job, (table,), "congestion", places, spines=4)


KINDS: tuple[Callable[[random.Random, Job, int], Drawn], ...] = (
    *(slow_nic, lossy_link, lossy_nic, link_down, flapping, nic_down, straggler, late_calls),
    *(absent_rank, stopped_process, crash, wrong_call, collision, second_job),
)
# Shapes whose ranks send across leaves in every step, which a fault of an uplink needs.
ACROSS = ("tensor and data", "sharded", "pipeline")


def draw(seed: int, ranks: int, at_ns: Callable[[Job, int], int]) -> Drawn:
    """Draws a random fault, the same for the same seed. at_ns: when a network fault begins."""
    chance = random.Random(f"fault {seed}")
    kind = KINDS[seed % len(KINDS)]
    on_uplinks = kind in (lossy_link, link_down, flapping, collision, second_job)
    shapes = ACROSS if on_uplinks else tuple(SHAPES)
    if kind in (late_calls, wrong_call, absent_rank, second_job):
        shapes = tuple(one for one in shapes if one != "pipeline")
    job = Job(chance.choice(shapes), ranks, chance.randrange(1 << 31))
    spines = 4 if kind is second_job else 8
    return kind(chance, job, at_ns(job, spines))
