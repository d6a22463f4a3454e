"""Training jobs of several shapes as scenarios of the simulator, to put faults into."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

Tables = dict[str, Any]

HOSTS_PER_LEAF = 16
STEP_BEFORE = 4  # healthy steps before a fault
STEPS_AFTER = 3  # steps in which a fault must be found
SHARED = 8  # ranks of a tensor-parallel group, and stages of a pipeline


def _compute(name: str, us: int, **more: Any) -> Tables:
    return {"name": name, "compute_ns": us * 1_000} | more


def _collective(name: str, what: str, size_bytes: int, **more: Any) -> Tables:
    return {"name": name, "collective": what, "size_bytes": size_bytes} | more


def tensor_and_data(ranks: int) -> list[Tables]:
    """Tensor parallelism in groups of 8 ranks, data parallelism across them."""
    across = {"group_ranks": SHARED, "across": True, "stream": "data"}
    return [
        _compute("forward", 400),
        _collective("activations", "all_reduce_ring", 2_000_000, group_ranks=SHARED),
        _compute("backward 1", 400, after="activations"),
        _collective("gradients 1", "all_reduce_ring", 4_000_000, **across),
        _compute("backward 0", 400),
        _collective("gradients 0", "all_reduce_ring", 4_000_000, **across),
        _compute("optimizer", 100, after=["gradients 1", "gradients 0"]),
    ]


def data(ranks: int) -> list[Tables]:
    """Data parallelism in groups of 16 consecutive ranks, and a tree AllReduce of all."""
    return [
        _compute("forward", 500),
        _compute("backward 1", 400),
        _collective("bucket 1", "all_reduce_ring", 4_000_000, group_ranks=16),
        _compute("backward 0", 400),
        _collective("bucket 0", "all_reduce_double_tree", 2_000_000),
        _compute("optimizer", 100, after=["bucket 1", "bucket 0"]),
    ]


def sharded(ranks: int) -> list[Tables]:
    """Sharded data parallelism: parameters are gathered before use, gradients are scattered.

    Shards are spread over 16 ranks, and groups of shards exchange their gradients (HSDP).
    """
    across = {"group_ranks": ranks // 16, "across": True}
    return [
        _collective("gather 0", "all_gather", 4_000_000, after=[], **across),
        _compute("forward", 400, after="gather 0"),
        _collective("gather 1", "all_gather", 4_000_000, after=[], **across),
        _compute("backward", 700, after="gather 1"),
        _collective("scatter", "reduce_scatter", 4_000_000, **across),
        _collective("exchange", "all_reduce_ring", 1_000_000, group_ranks=ranks // 16),
        _compute("optimizer", 100, after="exchange"),
    ]


def pipeline(ranks: int) -> list[Tables]:
    """A pipeline of four stages, each a quarter of the ranks; a stage sums its gradients."""
    stage = ranks // 4
    made = []
    for number in range(2):  # microbatches
        made += [
            _collective(f"from before {number}", "receive", 1_000_000, shift=stage, stream="in"),
            _compute(f"microbatch {number}", 400, after=f"from before {number}"),
            _collective(
                f"to next {number}",
                "send",
                1_000_000,
                shift=stage,
                stream="out",
                after=f"microbatch {number}",
            ),
        ]
    return [
        *made,
        _collective("gradients", "all_reduce_double_tree", 4_000_000, group_ranks=stage),
        _compute("optimizer", 100, after="gradients"),
    ]


SHAPES = {
    "tensor and data": tensor_and_data,
    "data": data,
    "sharded": sharded,
    "pipeline": pipeline,
}


@dataclass(frozen=True)
class Job:
    """A job: its shape, its ranks, and the seed of its noise and of its network."""

    shape: str
    ranks: int
    seed: int
    guests: int = 0  # hosts of each leaf that do not belong to the job

    @property
    def leaves(self) -> int:
        return self.ranks // HOSTS_PER_LEAF

    @property
    def per_leaf(self) -> int:
        return HOSTS_PER_LEAF + self.guests

    def hosts(self) -> list[int]:
        """The host of each rank."""
        return [
            rank // HOSTS_PER_LEAF * self.per_leaf + rank % HOSTS_PER_LEAF
            for rank in range(self.ranks)
        ]

    def guests_of(self, leaf: int) -> list[int]:
        first = leaf * self.per_leaf + HOSTS_PER_LEAF
        return list(range(first, first + self.guests))

    def tables(self, steps: int, spines: int = 8) -> Tables:
        return {
            "seed": self.seed,
            "limit_ns": 1_000_000_000,
            "network": {
                "hosts": self.leaves * self.per_leaf,
                "hosts_per_leaf": self.per_leaf,
                "spines": spines,
                "rate": "100 Gb/s",
                "uplink_rate": "100 Gb/s",
                "queue_bytes": "1 MB",
            },
            "hosts": {"paths": 16, "segment_bytes": 16_448, "burst_bytes_max": 65_536},
            "policies": {
                "window": "nscc:rtt_ns_min=0,hold_ns=0",
                "path": "power_of_two:burst_bytes=16384",
            },
            "workload": [
                {
                    "name": "training",
                    "pattern": "steps",
                    "hosts": self.hosts(),
                    "repeats": steps,
                    "launch_ns": 2_000,
                    "noise": 0.03,
                    "operations": SHAPES[self.shape](self.ranks),
                }
            ],
        }


def with_phases(tables: Tables) -> Tables:
    """The job with checkpoints, evaluations, and microbatches of two sizes: healthy, but uneven."""
    made = copy.deepcopy(tables)
    operations = made["workload"][0]["operations"]
    uneven = [
        {**one, "compute_ns": one["compute_ns"] // 2, "every": 2, "name": one["name"] + " more"}
        for one in operations
        if "compute_ns" in one and one["name"].startswith(("forward", "microbatch 1"))
    ]
    evaluation = _compute("evaluation", 2_000, every=9, offset=5)
    checkpoint = _compute("checkpoint", 6_000, every=11, offset=7)
    operations[:] = [*operations[:-1], *uneven, operations[-1], evaluation, checkpoint]
    return made
