"""Where the groups of a plan are among the hosts of a simulation of its step.

A simulation has a host for each node of each pipeline stage, with the NIC of one of its GPUs.
Stages that share a node have a host each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transport.estimate.collectives import ShapeError
from transport.estimate.plan import Group, Plan


@dataclass(frozen=True)
class Placed:
    """nodes: those of a stage, each a host; stages of a node: more than one if they are smaller."""

    plan: Plan
    gpus_per_node: int

    def check(self) -> None:
        """ShapeError if the step cannot be simulated, or sends nothing between nodes."""
        plan, each = self.plan, self.gpus_per_node
        if plan.gpus <= each:
            raise ShapeError(
                f"all {plan.gpus} GPUs are on one node of {each}: nothing to simulate; raise --data"
            )
        if plan.schedule == "dualpipe":
            raise ShapeError(
                "schedule: dualpipe cannot be simulated, as its passes are not scheduled one by one"
            )
        if self.stage_gpus % each and each % self.stage_gpus:
            raise ShapeError(
                f"data: a pipeline stage has {self.stage_gpus} GPUs: to be simulated they must "
                f"fill nodes of {each}, or divide them"
            )

    @property
    def stage_gpus(self) -> int:
        return self.plan.tensor * self.plan.replicas

    @property
    def nodes(self) -> int:
        return max(self.stage_gpus // self.gpus_per_node, 1)

    @property
    def hosts(self) -> int:
        return self.plan.pipeline * self.nodes

    def of_stage(self, stage: int) -> dict[str, Any]:
        """The key `ranks` of an operation of all hosts of a stage; empty: there is one stage."""
        if self.plan.pipeline == 1:
            return {}
        first = stage * self.nodes
        return {"ranks": f"{first}-{first + self.nodes - 1}"}

    def spread(self, kind: str, group: Group) -> tuple[int, dict[str, Any]]:
        """The hosts of a group, and the keys that make such groups of those of a stage.

        One host: the group is inside a node. kind: of communication, for the ShapeError of groups
        that have different numbers of GPUs on their nodes, or that are neither next to each other
        nor as far apart as possible.
        """
        each, count = self.gpus_per_node, group.nodes(self.gpus_per_node)
        if count == 1:
            return 1, {}
        apart = group.stride // each if group.stride >= each else 1
        fills = group.stride * group.ranks % each == 0 if group.stride < each else True
        if not fills or (group.stride >= each and group.stride % each) or self.nodes % count:
            raise ShapeError(f"{kind}: groups that do not fill their nodes cannot be simulated")
        if count == self.nodes:
            return count, {}
        if apart == 1:
            return count, {"group_ranks": count}
        if apart * count == self.nodes:
            return count, {"group_ranks": apart, "across": True}
        raise ShapeError(f"{kind}: groups of every {apart}th node cannot be simulated")
