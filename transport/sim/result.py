"""Computes the measures of a run: FCT, slowdown, busbw, marks, queues.

FCT is the time from when a transfer may begin until its last byte is in the receiver's memory.
Slowdown is FCT divided by the ideal time of ideal.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from transport.ground.collectives import bus_factor
from transport.ground.units import time_text
from transport.policies.choice import PolicyName
from transport.policies.fairness import jain
from transport.sim import by_size, coexist, ideal
from transport.sim.groups import BETWEEN, Group
from transport.sim.network import Array
from transport.sim.program import BEGIN, END
from transport.sim.scenario import Scenario
from transport.sim.traced import Traced

QUANTILES = {"p50": 50, "p95": 95, "p99": 99}
IDEAL = "ideal: until the last packet arrives, alone in an empty network, over the best routes"


def spread(values: Array) -> dict[str, float]:
    """The p50, p95, p99 and max of some values; an empty dict if there are none."""
    if values.size == 0:
        return {}
    found = {name: float(np.percentile(values, share)) for name, share in QUANTILES.items()}
    return found | {"max": float(values.max())}


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The result of a run. Arrays have a row for each transfer, connection or port.

    docs/SIMULATOR.md has the columns of transfers, streams, ports and samples, with their units.
    """

    scenario: Scenario
    policies: dict[str, str]  # family -> the policy that the run used
    sources: dict[str, str]  # family -> SHA-256 of the policy's source
    totals: dict[str, int | bool]
    transfers: Array  # fields ready_ns, received_ns, sent_ns; -1: has not happened
    streams: Array
    ports: Array
    samples: dict[str, Array] = field(default_factory=dict)
    sampled_transfers: tuple[int, ...] = ()
    violation: str = ""
    policy_failure: str = ""
    partial: bool = False  # True: the run was interrupted
    local: Array | None = None  # fields as in `transfers`, for the local events of programs
    traced: Traced | None = None  # records of the hosts, if the run was traced
    groups: tuple[Group, ...] = ()  # the transfers by their policies
    group_of: Array | None = None  # for each transfer the index of its group
    alone: tuple[dict[str, float], ...] = ()  # for each group `measures` of a run of it alone
    given: Mapping[str, PolicyName] = field(default_factory=dict)  # what replaced [policies]
    # By switch, the most bytes of its shared buffer that were in use; empty if none is shared.
    buffers: Array = field(default_factory=lambda: np.zeros(0, np.int64))

    def __repr__(self) -> str:
        """Three lines: what was run, what came out, and where more is."""
        row = self.summary()
        said = [f"{row['done']:,} of {row['transfers']:,} transfers received"]
        if row["done"]:
            said[0] += f" in {time_text(row['completion_ns'])}"
            for name in ("p50", "p99"):
                if not by_size.is_judged(f"fct_ns_{name}", row["done"]):
                    continue
                fct, slowdown = time_text(row[f"fct_ns_{name}"]), row[f"slowdown_{name}"]
                said.append(f"FCT {name} {fct}, slowdown {slowdown:.3g}")
        if not self.good:
            said.append(self.violation or self.policy_failure or "not finished")
        return (
            f"{self.title}\n{'; '.join(said)}; fingerprint {self.fingerprint}\n"
            "rows: summary() jobs slowdown_by_size tiers steps rows(); arrays: transfers streams "
            "ports samples; weft docs simulator"
        )

    @property
    def title(self) -> str:
        """The scenario, the seed and the policies."""
        chosen = " ".join(f"{family}={text}" for family, text in self.policies.items())
        return f"{self.scenario.name}, seed {self.seed}: {chosen}"

    @property
    def seed(self) -> int:
        return self.scenario.seed

    @cached_property
    def done(self) -> Array:
        """Whether each transfer is received."""
        return np.asarray(self.transfers["received_ns"] >= 0)

    @cached_property
    def fct_ns(self) -> Array:
        """The FCT of each received transfer."""
        had = self.transfers[self.done]
        return np.asarray(had["received_ns"] - had["ready_ns"], np.int64)

    @cached_property
    def ideal_ns(self) -> Array:
        """The ideal time of every transfer, in ns: see ideal.py."""
        own = self.scenario
        keys = own.keys
        return ideal.ideal_ns(
            own.network, own.work.transfers, keys["hosts"], own.changes, keys["network"]["ecmp"]
        )

    @cached_property
    def slowdown(self) -> Array:
        """FCT over ideal time of each received transfer, at least 1."""
        return np.asarray(self.fct_ns / np.maximum(self.ideal_ns[self.done], 1))

    @property
    def finished(self) -> bool:
        return bool(self.totals["finished"])

    @property
    def good(self) -> bool:
        """Whether all transfers are done, no invariant broke and no policy failed."""
        broken = self.violation or self.totals["violations"] or self.totals["policies_failed"]
        return self.finished and not broken and not self.partial

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the run, the scenario and the policies' sources: 16 hex digits."""
        return fingerprint(int(self.totals["fingerprint"]), self.scenario, self.sources)

    @cached_property
    def jobs(self) -> list[dict[str, Any]]:
        """One row for each [[workload]]."""
        work = self.scenario.work
        return [self._job(number) for number in range(len(work.jobs))]

    @cached_property
    def slowdown_by_size(self) -> list[dict[str, Any]]:
        """One row for each job and group of message sizes: see rows() of by_size.py."""
        work = self.scenario.work
        sizes, job = work.transfers["bytes"][self.done], work.transfers["job"][self.done]
        payload = ideal.payload_bytes(self.scenario.keys["hosts"])
        return [
            {"job": name} | row
            for number, name in enumerate(work.names)
            for row in by_size.rows(sizes[job == number], self.slowdown[job == number], payload)
        ]

    @property
    def is_mixed(self) -> bool:
        """Whether transfers use different policies."""
        return len(self.groups) > 1

    @cached_property
    def served(self) -> coexist.Served:
        """The times in which connections are served; only for a mixed run."""
        assert self.group_of is not None
        received, ended_ns = self.streams["bytes_received"], int(self.totals["ended_ns"])
        own = self.scenario.work.transfers
        return coexist.served(own, self.transfers, self.group_of, received, ended_ns)

    @cached_property
    def coexistence(self) -> dict[str, Any]:
        """How groups with different policies share the network: see report() of coexist.py.

        Empty if all transfers use the same policies.
        """
        if not self.is_mixed or self.group_of is None:
            return {}
        labels, own = [one.label for one in self.groups], self.group_of
        done = own[self.done]
        found = coexist.report(self.served, labels, self.fct_ns, done, own, self.alone)
        for row, group in zip(found["groups"], self.groups, strict=True):
            row |= {"policies": group.policies, "sources": group.sources}
        return found

    def measures(self, group: int) -> dict[str, float]:
        """What harm compares, of one group: see measures() of coexist.py."""
        assert self.group_of is not None
        return coexist.measures(self.served, self.fct_ns, self.group_of[self.done], group)

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """One row for each job that runs a program: the time of its steps and of their parts."""
        return [
            self._steps(number)
            for number, job in enumerate(self.scenario.work.jobs)
            if job.program is not None and self.local is not None
        ]

    def _steps(self, number: int) -> dict[str, Any]:
        work, program = self.scenario.work, self.scenario.work.jobs[number].program
        assert program is not None
        assert self.local is not None
        mine = work.local["job"] == number
        local, at_ns = work.local[mine], self.local["ready_ns"][mine]
        row: dict[str, Any] = {"job": work.names[number], "operations": len(program.operations)}
        if (at_ns < 0).any():
            return row | {"finished": False}
        count = max((one.step for one in program.operations), default=0) + 1
        whole_ns = int(at_ns.max() - at_ns.min())
        # The n-th BEGIN event and the n-th END event are of the same operation and rank.
        begin, end = local["kind"] == BEGIN, local["kind"] == END
        spent_ns = at_ns[end] - at_ns[begin]
        is_computation = np.array([not one.function for one in program.operations])
        computes = is_computation[local["operation"][begin]]
        ranks = program.ranks
        busy_ns = np.bincount(local["rank"][begin][computes], spent_ns[computes])
        compute_ns = float(busy_ns.sum()) / ranks
        row |= {"finished": True, "steps": count, "step_ns": whole_ns / count}
        row["network_ns"] = float(spent_ns[~computes].sum()) / ranks / count
        if not program.is_trace:
            row["compute_ns"] = compute_ns / count
            # Share of a step in which an average rank does not compute.
            row["exposed_share"] = max(1 - compute_ns / max(whole_ns, 1), 0.0)
        return row

    def _job(self, number: int) -> dict[str, Any]:
        work = self.scenario.work
        job, mine = work.jobs[number], work.transfers["job"] == number
        had = mine & self.done
        # A trace that is played back may have fewer ranks than there are hosts.
        ranks = len(work.hosts[number]) if job.program is None else job.program.ranks
        row: dict[str, Any] = {"job": work.names[number], "ranks": ranks}
        row |= {"transfers": int(mine.sum()), "done": int(had.sum())}
        if not had.any():
            return row
        # A mask of the job's transfers, for arrays that contain only received transfers.
        own = mine[self.done]
        row |= _named(spread(self.fct_ns[own]), "fct_ns_")
        row |= _named(spread(self.slowdown[own]), "slowdown_")
        started = int(self.transfers["ready_ns"][had].min())
        ended = int(self.transfers["received_ns"][had].max())
        row["completion_ns"] = ended - started
        sizes = work.transfers["bytes"][had].astype(np.float64)
        row["goodput_bytes_per_s"] = float(sizes.sum()) * 1e9 / max(ended - started, 1)
        rates = sizes / np.maximum(self.fct_ns[own], 1)
        row["jain"] = jain(rates)
        if job.buffer_bytes and had.sum() == mine.sum():
            seconds = row["completion_ns"] / 1e9 / job.repeats
            row["algbw_bytes_per_s"] = job.buffer_bytes / seconds
            row["busbw_bytes_per_s"] = job.buffer_bytes / seconds * bus_factor(job.function, ranks)
        return row

    @cached_property
    def tiers(self) -> list[dict[str, Any]]:
        """One row for each tier of links, in the order in which a packet meets them."""
        network = self.scenario.network
        span = max(int(self.totals["ended_ns"]), 1)
        rows = []
        for name, chosen in network.tier_ports.items():
            ports = self.ports[chosen]
            # A packet that is being sent when the run ends counts as a whole: cap at 1.
            busy = np.minimum(ports["busy_ns"] / span, 1.0)
            row: dict[str, Any] = {"tier": name, "links": len(chosen)}
            row |= {"utilisation": float(busy.mean()), "utilisation_max": float(busy.max())}
            row["imbalance"] = self._imbalance(chosen)
            for share in ("p50", "p95", "p99", "max"):
                # Quantile of the queue length that arriving data met, at the worst port.
                row[f"queue_bytes_{share}"] = int(ports[f"queue_bytes_{share}"].max())
            for what in ("marked", "trimmed", "dropped", "lost", "pauses"):
                row[what] = int(ports[what].sum())
            rows.append(row)
        return rows

    def _imbalance(self, chosen: Array) -> float | None:
        """The largest ratio of maximum to mean bytes within a set of equal-cost links."""
        network = self.scenario.network
        wide = np.flatnonzero(np.diff(network.set_begin) > 1)
        inside = np.zeros(len(network.ports), bool)
        inside[chosen] = True
        worst = None
        for number in wide:
            ports = network.set_of(int(number))
            if not inside[ports[0]]:
                continue
            carried = self.ports["bytes"][ports]
            if carried.sum() > 0:
                worst = max(worst or 0.0, float(carried.max() / carried.mean()))
        return worst

    def summary(self) -> dict[str, Any]:
        """One row for the whole run."""
        sent, ports = self.streams, self.ports
        first = int(sent["segments_sent"].sum()) - int(sent["segments_resent"].sum())
        resent = int(sent["segments_resent"].sum())
        row: dict[str, Any] = {"transfers": len(self.transfers), "done": int(self.done.sum())}
        row |= _named(spread(self.fct_ns), "fct_ns_") | _named(spread(self.slowdown), "slowdown_")
        if self.done.any():
            begun = int(self.transfers["ready_ns"][self.done].min())
            row["completion_ns"] = int(self.transfers["received_ns"].max()) - begun
        row |= {
            "retransmits_per_packet": resent / max(first, 1),
            "retransmits": resent,
            "spurious_resends": int(sent["spurious_resends"].sum()),
            "trimmed": int(ports["trimmed"].sum()),
            "marked": int(ports["marked"].sum()),
            "marked_share": int(ports["marked"].sum()) / max(int(ports["data_packets"].sum()), 1),
            "dropped": int(ports["dropped"].sum()),
            "lost": int(ports["lost"].sum()),
            "queue_bytes_p99": int(
                max((row["queue_bytes_p99"] for row in self.switch_tiers), default=0)
            ),
            "virtual_ns": int(self.totals["ended_ns"]),
            "packet_hops": int(self.totals["packet_hops"]),
            "data_packets": int(self.totals["data_packets"]),
        }
        if self.buffers.size:
            row["buffer_bytes_max"] = int(self.buffers.max())
        return row | {"finished": self.finished, "fingerprint": self.fingerprint}

    @property
    def switch_tiers(self) -> list[dict[str, Any]]:
        """The tiers whose queues are in switches."""
        return [row for row in self.tiers if not row["tier"].startswith("host>")]

    @property
    def hashes(self) -> dict[str, Any]:
        """SHA-256 of all that the run was made from, as hexadecimal text.

        scenario: of its file, before any key was changed; policies: family -> of its source, None
        for a policy that is part of weft; files: name -> of a file that the scenario names.
        """
        return {
            "scenario": self.scenario.provenance()["scenario_sha256"],
            "policies": {family: digest_of(text) for family, text in self.sources.items()},
            "files": self.scenario.file_hashes(),
        }

    @property
    def origin(self) -> dict[str, Any]:
        """What tells this run from others, as columns of its rows.

        Scenario, file and SHA-256, seed, fingerprint, and of each family its policy, as
        window_policy, and the SHA-256 of its source, as window_sha256; see `hashes`.
        """
        found: dict[str, Any] = {**self.scenario.provenance(), "seed": self.seed}
        return found | policy_columns(self) | {"fingerprint": self.fingerprint}

    def samples_dict(self) -> dict[str, Any]:
        """The samples as lists, in the units that docs/SIMULATOR.md says; {} without samples.

        ports and connections name the columns: a port as leaf0>spine2, a connection by its ends
        and the number of its first transfer.
        """
        if not self.samples:
            return {}
        own = self.scenario
        names, ends = own.network.node_names, own.work.transfers
        found: dict[str, Any] = {
            "ports": [own.network.port_name(int(port)) for port in own.sampled_ports()],
            "connections": [
                {"from": names[ends["from"][one]], "to": names[ends["to"][one]], "transfer": one}
                for one in self.sampled_transfers
            ],
        }
        return found | {name: values.tolist() for name, values in self.samples.items()}

    def as_dict(self) -> dict[str, Any]:
        """The result as a JSON object."""
        own = self.scenario
        found: dict[str, Any] = {
            "scenario": own.name,
            "seed": self.seed,
            "fingerprint": self.fingerprint,
            "policies": self.policies,
            "sources": self.sources,
            "hashes": self.hashes,
            "summary": self.summary(),
            "jobs": self.jobs,
            "slowdown_by_size": self.slowdown_by_size,
            "steps": self.steps,
            "coexistence": self.coexistence,
            "tiers": self.tiers,
            "totals": self.totals,
            "ideal": IDEAL,
            "violation": self.violation,
            "policy_failure": self.policy_failure,
            "notes": [*own.network.notes, *own.work.notes],
            "keys": {k: v for k, v in own.keys.items() if k != "about"},
            "samples": self.samples_dict(),
        }
        return found | ({"partial": True} if self.partial else {})

    def rows(self) -> list[dict[str, Any]]:
        """One row for each transfer, for CSV and data frames: see columns()."""
        columns = {name: values.tolist() for name, values in self.columns().items()}
        return [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]

    def columns(self) -> dict[str, Array]:
        """The columns of rows(), each an array of shape [transfer].

        from, to, job: text; bytes; ready_ns, posted_ns, received_ns, sent_ns, as in `transfers`;
        ideal_ns; slowdown, rounded to 4 decimals, None if the transfer is not received; group, the
        label of its policies, if workloads name policies of their own.
        """
        work, names = self.scenario.work, np.array(self.scenario.network.node_names, object)
        slowdown = np.full(len(self.transfers), None, object)
        slowdown[self.done] = np.round(self.slowdown, 4)
        mixed: dict[str, Array] = {}
        if self.scenario.mix is not None and self.group_of is not None:
            labels = [one.label for one in self.groups]
            mixed["group"] = np.array(labels, object)[self.group_of]
        return {
            "from": names[work.transfers["from"]],
            "to": names[work.transfers["to"]],
            "job": np.array(work.names, object)[work.transfers["job"]],
            "bytes": work.transfers["bytes"],
            **{name: self.transfers[name] for name in self.transfers.dtype.names or ()},
            "ideal_ns": self.ideal_ns,
            "slowdown": slowdown,
            **mixed,
        }


def _named(values: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {prefix + name: value for name, value in values.items()}


def digest_of(source: str) -> str | None:
    """The SHA-256 in one of Result.sources; None for a policy that is part of weft.

    Of a mixed run those of all groups, with " + " between them.
    """
    found = [one.partition(":")[0] for one in source.split(BETWEEN)]
    if len(found) == 1 and len(found[0]) != 64:
        return None
    return BETWEEN.join(found)


def policy_columns(result: Result) -> dict[str, str | None]:
    """Of each family the policy and the SHA-256 of its source: window_policy, window_sha256."""
    found: dict[str, str | None] = {
        f"{family}_policy": text for family, text in result.policies.items()
    }
    return found | {f"{family}_sha256": digest_of(text) for family, text in result.sources.items()}


def fingerprint(native: int, scenario: Scenario, sources: Mapping[str, str]) -> str:
    """A hash of the native fingerprint, the scenario's content and the policies' sources."""
    parts = [f"{native:016x}", scenario.content()]
    parts += [f"{family} {digest}" for family, digest in sorted(sources.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
