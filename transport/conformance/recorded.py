"""Makes a stream of events from the decisions recorded in runs of a dumbbell network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from congestion.api import Policy
from transport.conformance.scenes import MS, Cast, bottleneck, marking, plan_of
from transport.conformance.streams import Chunk, Stream
from transport.policies.dumbbell import Plan, run
from transport.policies.recording import Step, parse

PATHS = 4
BYTES_MAX = 64 << 20


def plans(cast: Cast, limit_ns: int) -> Iterator[Plan]:
    """Plans two simulator runs over four paths: one with marks and losses, and one without."""
    for loss, make in ((2**-7, marking), (0.0, bottleneck)):
        link = make(loss=loss, reorder=1.0, reorder_ns_max=3_000)
        plan = plan_of(cast, links=[link] * PATHS, flows=2, limit_ns=limit_ns)
        plan.link_bytes_per_s = link.bytes_per_s
        plan.recording_bytes_max = BYTES_MAX
        yield plan


def one_life(steps: list[Step]) -> list[Step]:
    """The recorded steps of the flow or peer with the most steps, from its last on_start."""
    owners = Counter(step.owner for step in steps)
    if not owners:
        return []
    (owner, _), *_ = owners.most_common(1)
    own = [step for step in steps if step.owner == owner]
    starts = [index for index, step in enumerate(own) if step.hook == 0]
    return own[starts[-1] :] if starts else []


def chunks(policy: Policy, cast: Cast, quick: bool) -> Iterator[Chunk]:
    """Yields a chunk per run: the events of one flow, peer or receiver."""
    family = policy.family
    for plan in plans(cast, 4 * MS if quick else 20 * MS):
        steps = one_life(parse(run(plan).recording).of(family.name))
        if not steps:
            continue
        hooks = np.array([step.hook for step in steps])
        events = np.concatenate([step.event for step in steps])
        yield Chunk(
            hooks.tolist(),
            events,
            Stream(policy, 0).presets(hooks, events),
            PATHS if policy.shares == "path" else 1,
            np.stack([step.heads for step in steps]) if family.shared_head.size_bytes else None,
            extreme=False,
            heads_every=1,
        )
