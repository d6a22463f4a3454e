"""What the traffic of several GPUs shares: PCIe links and switches, and the uplinks of a fat tree.

A GPU sends to its NIC over its own PCIe link. Where GPUs reach each other over PCIe, too, that link
carries both. GPUs behind one PCIe switch share its link to the CPU. The leaf switches of an
oversubscribed fat tree have less bandwidth to the spines than to their nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

NODES_PER_LEAF = 16
# Two trees over nodes in order have 6 edges from a leaf to others, and at most 4 from a node; a
# ring has one of each.
TREE_EDGES = 6 / 4


@dataclass(frozen=True)
class Spread:
    """How a group lies among the nodes. apart: from one of its nodes to the next. nodes: of the
    whole group, if only two of its ranks send to each other; 0: those of the operation."""

    apart: int = 1
    nodes: int = 0


NEXT_TO_EACH_OTHER = Spread()


@dataclass(frozen=True)
class Sharing:
    """Links that several kinds of traffic share; without values, none.

    pcie_bytes_per_s: the most that a GPU sends to NICs, because its own PCIe link, and that of the
    NIC, carry it; 0: not said. is_inside: whether GPUs of a node reach each other over that link.
    gpus_per_switch: GPUs behind one PCIe switch, whose link to the CPU has the rate of the link
    inside; 0: all. nics_per_node: 0: one for each GPU. oversubscription: a leaf's bandwidth to its
    nodes / to the spines. nodes_per_leaf: nodes are in the order of ranks.
    """

    pcie_bytes_per_s: float = 0.0
    is_inside: bool = False
    gpus_per_switch: int = 0
    nics_per_node: int = 0
    oversubscription: float = 1.0
    nodes_per_leaf: int = NODES_PER_LEAF

    def inside_bytes(
        self, operation: str, algorithm: str, inside: float, between: float, per_node: float
    ) -> float:
        """Bytes of the busiest PCIe link of a node. inside, between: those that a GPU sends.

        In a ring a GPU passes on what it gets, either to a GPU of its node or to another node.
        """
        if not self.is_inside:
            return inside
        if algorithm in ("ring", "pat"):
            return max(inside, between)
        if operation != "all_to_all":
            return inside + between
        return max(inside + between, self._uplink_bytes(inside, between, per_node))

    def _uplink_bytes(self, inside: float, between: float, per_node: float) -> float:
        """Bytes of an all-to-all that a PCIe switch sends to the CPU, or gets from there."""
        behind = self.gpus_per_switch
        if not 0 < behind < per_node:
            return 0.0
        peers = behind * (per_node - behind) * inside / (per_node - 1)
        if self.nics_per_node and self.nics_per_node * behind < per_node:
            # Some switches have no NIC: their GPUs use those of the others.
            away = max(behind, per_node / self.nics_per_node - behind)
            return peers + away * between
        return peers

    def leaf_bytes(
        self, operation: str, algorithm: str, between: float, nodes: int, spread: Spread
    ) -> float:
        """Bytes between nodes that load a leaf's uplinks like so many bytes would load its nodes.

        A message to the node d places further leaves a leaf of L nodes from min(d, L) of them.
        Neighbours in rings are `spread.apart` places apart, and all groups send at once. Of PAT's
        blocks, 1/2 go 1 node of the group further, 1/4 go 2, 1/8 go 4, and so on. In an all-to-all
        each node sends to all of other leaves.
        """
        leaf, apart = self.nodes_per_leaf, spread.apart
        if max(nodes, spread.nodes) * apart <= leaf or self.oversubscription <= 1:
            return 0.0
        if operation == "all_to_all":
            mates = max(leaf // apart, 1)
            part = max(nodes - mates, 0) / (nodes - 1)
        elif algorithm == "pat":
            distances = [1 << bit for bit in range((nodes - 1).bit_length())]
            part = sum(min(one * apart, leaf) / (2 * one * leaf) for one in distances)
        else:
            edges = TREE_EDGES if algorithm in ("tree", "nvls") else 1.0
            part = min(edges * apart, leaf) / leaf
        return between * part * self.oversubscription


NOTHING = Sharing()
