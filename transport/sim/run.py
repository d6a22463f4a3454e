"""Builds the native fabric's plan from a scenario and runs it in steps.

The same scenario, policies and seed give the same result on any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transport import native
from transport.errors import OutOfMemoryError
from transport.policies.choice import PolicyName
from transport.sim import planned
from transport.sim.errors import BadKeyError, ScenarioError
from transport.sim.groups import groups_of, joined, load_into
from transport.sim.ideal import base_rtt_ns
from transport.sim.key import NS_MAX
from transport.sim.network import Array, shared_queue_bytes
from transport.sim.result import Result
from transport.sim.scenario import Scenario, load
from transport.sim.traced import Traced
from transport.sim.work import TRANSFER, Work

STEP_HOPS = 200_000  # packet-hops of one step, which takes a fraction of a second
# Keys of a scenario's [hosts] -> fields of native.FabricPlan, where the names differ.
PLAN_NAMES = {"delay_ns": "host_delay_ns", "jitter_ns": "host_jitter_ns"}


def as_native(mine: Array, wanted: np.dtype[Any]) -> Array:
    """Copies the array into the extension's struct layout."""
    made = np.zeros(len(mine), wanted)
    if set(wanted.names or ()) != set(mine.dtype.names or ()):
        raise TypeError(
            f"the native extension has fields {wanted.names}, the Python package "
            f"{mine.dtype.names}: run make build"
        )
    for name in mine.dtype.names or ():
        made[name] = mine[name]
    return made


def with_local(work: Work) -> Array:
    """The transfers, followed by the local events as transfers from a host to itself."""
    local = np.zeros(len(work.local), TRANSFER)
    local["from"] = local["to"] = work.local["rank"]
    local["start_ns"], local["job"] = work.local["start_ns"], work.local["job"]
    return np.concatenate([work.transfers, local])


class Simulation:
    """Runs a simulation step by step. The number of threads changes only its speed."""

    def __init__(
        self,
        scenario: Scenario,
        policies: Mapping[str, PolicyName] | None = None,
        *,
        threads: int = 1,
        check: bool = False,
        trace_ns: int = 0,
        alone: int | None = None,
    ) -> None:
        """policies: they replace those of [policies]; workloads keep those that they name.

        trace_ns: time between records of paths, for a trace; 0: hosts record nothing. alone: the
        group of policies whose transfers alone begin; samples are not taken then.
        """
        self.scenario = scenario.check()
        self.groups, self.group_of = groups_of(scenario, policies or {})
        self.alone, self.given = alone, dict(policies or {})
        self.policies = joined(self.groups, "policies")
        self.sources = joined(self.groups, "sources")
        self.sampled: tuple[int, ...] = ()
        self.plan = native.FabricPlan()
        self.plan.threads, self.plan.check = threads, check
        self.plan.trace_ns = trace_ns
        self._network()
        self._work()
        self._hosts()
        self._samples()
        self._policies()
        wrong = self.plan.complaint()
        if wrong:
            raise ScenarioError(f"{scenario.file}: the simulation needs {wrong}")
        self._plans()
        self._fabric: native.Fabric | None = None
        self._over = False

    @property
    def estimated_bytes(self) -> int:
        """An estimate of the memory that the run needs."""
        return self.plan.estimated_bytes()

    def step(self, hops: int = STEP_HOPS) -> bool:
        """Runs `hops` packet-hops; returns False once the run is over.

        Raises OutOfMemoryError if memory or threads cannot be allocated.
        """
        try:
            if self._fabric is None:
                self._fabric = native.Fabric(self.plan)
            self._over = not self._fabric.run(hops)
            return not self._over
        except MemoryError as error:
            raise OutOfMemoryError(f"{self.scenario.name}: {error}") from None

    @property
    def totals(self) -> dict[str, int | bool]:
        """The counters of the run so far."""
        if self._fabric is None:
            return dict.fromkeys(TOTALS, 0)
        found = self._fabric.totals
        totals = {name: getattr(found, name) for name in TOTALS}
        # The fabric stops early if no event is due before the limit, as in a long computation.
        if self._over and not totals["finished"] and not self._fabric.violation:
            totals["ended_ns"] = self.plan.limit_ns
        return totals

    def result(self, *, partial: bool = False) -> Result:
        """The result of the run up to now."""
        if self._fabric is None:
            self.step(0)
        fabric = self._fabric
        assert fabric is not None
        return Result(
            self.scenario,
            self.policies,
            self.sources,
            self.totals,
            fabric.transfers()[: len(self.scenario.work.transfers)],
            fabric.streams(),
            fabric.ports(),
            fabric.samples(),
            self.sampled,
            fabric.violation,
            fabric.policy_failure,
            partial,
            fabric.transfers()[len(self.scenario.work.transfers) :],
            self._traced(fabric),
            self.groups,
            self.group_of,
            given=self.given,
            buffers=fabric.buffer_bytes_max(),
        )

    def _traced(self, fabric: native.Fabric) -> Traced | None:
        if not self.plan.trace_ns:
            return None
        ends = self.scenario.work.transfers[["from", "to"]]
        pairs = np.unique(np.stack([ends["from"], ends["to"]], axis=1), axis=0)
        pairs = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
        paths = np.arange(self.plan.paths)
        rows = np.column_stack([np.repeat(pairs, len(paths), axis=0), np.tile(paths, len(pairs))])
        recorded = fabric.traced_transfers(), fabric.traced_paths(), fabric.traced_events()
        return Traced(*recorded, rows, fabric.routes(rows.astype(np.uint32)))

    def _network(self) -> None:
        own, plan = self.scenario.network, self.plan
        ports = own.ports.copy()
        # Make the queues of hosts' ports so long that they do not drop bursts of their host.
        mine = ports["from"] < own.hosts
        least = 2 * self.scenario.keys["hosts"]["burst_bytes_max"]
        ports["queue_bytes_max"][mine] = np.maximum(ports["queue_bytes_max"][mine], least)
        keys = self.scenario.keys["network"]
        plan.buffer_bytes, plan.buffer_alpha = keys["buffer_bytes"], keys["buffer_alpha"]
        if plan.buffer_bytes:
            ports["queue_bytes_max"][~mine] = shared_queue_bytes(keys)
        routes = self.scenario.routes
        plan.set_network(
            hosts=own.hosts,
            switches=own.switches,
            ports=as_native(ports, native.PORT_PLAN),
            group_of=own.group_of.astype(np.uint32),
            route=np.ascontiguousarray(routes.route, np.int32).ravel(),
            set_begin=routes.set_begin.astype(np.uint32),
            set_ports=routes.set_ports.astype(np.uint32),
            route_at_ns=routes.at_ns,
        )
        if len(self.scenario.changes):
            plan.set_changes(as_native(self.scenario.changes, native.PORT_CHANGE))
        plan.ecmp = keys["ecmp"]
        plan.trim, plan.priority = keys["trim"], keys["priority"]
        plan.header_queue_bytes_max = keys["header_queue_bytes_max"]
        plan.pause_bytes, plan.resume_bytes = keys["pause_bytes"], keys["resume_bytes"]

    def _policies(self) -> None:
        local = np.zeros(len(self.scenario.work.local), np.uint16)
        load_into(self.plan, self.groups, np.concatenate([self.group_of, local]))

    def _work(self) -> None:
        work = self.scenario.work
        transfers = with_local(work)
        if self.alone is not None:
            # This module must load without the native extension, which dumbbell needs.
            from transport.policies.dumbbell import BEYOND_NS

            others = np.flatnonzero(self.group_of != self.alone)
            never_ns = min(self.scenario.keys["limit_ns"] + BEYOND_NS, NS_MAX)
            transfers["start_ns"][others] = never_ns
        self.plan.set_work(
            as_native(transfers, native.TRANSFER_PLAN),
            as_native(work.dependencies, native.DEPENDENCY_PLAN),
        )
        self.plan.seed = self.scenario.seed
        self.plan.limit_ns = self.scenario.keys["limit_ns"]

    def _plans(self) -> None:
        own = self.scenario
        if not own.plans:
            return
        try:
            found = planned.choices(own.plans, own.network, self.plan)
        except BadKeyError as error:
            raise own.problem(error) from None
        self.plan.set_choices(as_native(found, native.PATH_CHOICE))

    def _hosts(self) -> None:
        for name, value in self.scenario.keys["hosts"].items():
            if name == "link_rate":
                self.plan.link_bytes_per_s = value or 0
            elif name == "speculative_bytes":
                self.plan.speculative_bytes = -1 if value is None else value
            elif name == "rtt_ns" and value is None:
                own = self.scenario
                self.plan.rtt_ns = base_rtt_ns(own.network, own.work.transfers, own.keys["hosts"])
            else:
                setattr(self.plan, PLAN_NAMES.get(name, name), value)

    def _samples(self) -> None:
        keys = self.scenario.keys["samples"]
        if not keys["every_ns"] or self.alone is not None:
            return
        # Sampled connections are given by the index of their first transfer.
        named = self.scenario.work.transfers[["from", "to", "stream"]]
        first = np.sort(np.unique(named, return_index=True)[1])
        places = np.linspace(0, len(first) - 1, min(keys["transfers"], len(first))).astype(int)
        self.sampled = tuple(first[places].tolist())
        self.plan.sample_ns = keys["every_ns"]
        self.plan.sample_ports = self.scenario.sampled_ports().tolist()
        self.plan.sample_streams = list(self.sampled)


TOTALS = (
    *("ended_ns", "packet_hops", "data_packets", "segments", "windows", "transfers_done"),
    *("violations", "policies_failed", "storage_bytes", "fingerprint", "finished"),
)


def run(
    scenario: Scenario | str | Path,
    policies: Mapping[str, PolicyName] | None = None,
    *,
    seed: int | None = None,
    changes: Mapping[str, Any] | None = None,
    threads: int = 1,
    check: bool = False,
    trace_ns: int = 0,
    on_step: Callable[[Simulation], None] | None = None,
) -> Result:
    """Runs a scenario to its end and returns the result.

    scenario: a Scenario, its file, or the name of one that is shipped with weft.
    policies: family -> policy; they replace the scenario's policies.
    changes: values that replace keys of the scenario, as {"network.rate": "400 Gb/s"}.
    """
    if not isinstance(scenario, Scenario):
        scenario = load(scenario)
    wanted = dict(changes or {}) | ({} if seed is None else {"seed": seed})
    if wanted:
        scenario = scenario.changed(wanted)
    simulation = Simulation(scenario, policies, threads=threads, check=check, trace_ns=trace_ns)
    while simulation.step():
        if on_step is not None:
            on_step(simulation)
    return simulation.result()
