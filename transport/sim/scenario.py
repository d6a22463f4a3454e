"""Reads and checks scenarios: the network, jobs, policies and events that a file describes.

A scenario is immutable: changing a key makes another one, which is checked again. The native
extension is not needed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from transport.ground import toml
from transport.ground.text import nearest
from transport.sim import (
    chakra,
    collectives,
    events,
    faults,
    flows,
    goal,
    graph,
    mixed,
    planned,
    replayed,
    reroute,
    schema,
    shapes,
    steps,
    trees,
    work,
)
from transport.sim.errors import BadKeyError, ScenarioError, dotted
from transport.sim.network import Array, Network, shared_queue_bytes
from transport.sim.toml_lines import line_of, lines_of

Tables = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """One experiment. `tables`: the content of the file; `keys`: the same, plus all defaults.

    added: the file that further [[faults]] come from, and the number of the first of them.
    """

    tables: Tables
    keys: Tables
    file: str
    folder: Path
    text: str = ""
    added: tuple[str, int] | None = None

    def __getstate__(self) -> Tables:
        """Pickles without the cached arrays; the receiving process computes them again."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def name(self) -> str:
        return str(self.keys["name"] or Path(self.file).stem)

    @property
    def seed(self) -> int:
        return int(self.keys["seed"])

    def problem(self, error: BadKeyError) -> ScenarioError:
        """A ScenarioError in one line: file, line, key, what is wrong and what to do."""
        said, meant = (_at(one, error.path) for one in (tomllib.loads(self.text), self.tables))
        if self.text and repr(said) != repr(meant):  # repr, because nan != nan
            return self._changed_problem(error)
        line = line_of(lines_of(self.text), error.path)
        where = f"{self.file}:{line}" if self.text else self.file
        return ScenarioError(f"{where}: {dotted(error.path)}: {error.text}")

    def _changed_problem(self, error: BadKeyError) -> ScenarioError:
        """A ScenarioError without line number, as the value is not from the scenario's file."""
        if self.added is not None and error.path[0] == "faults":
            file, first = self.added
            number = int(error.path[1]) - first
            if number >= 0:
                where = dotted(("faults", number, *error.path[2:]))
                return ScenarioError(f"{file}: {where}: {error.text}")
        told = f"{dotted(error.path)}: {error.text}"
        return ScenarioError(f"{told} (set for this run, not in {self.file})")

    @cached_property
    def network(self) -> Network:
        """The scenario's hosts, switches and links."""
        try:
            return faults.with_collisions(_network(self.keys, self.folder), self.keys["faults"])
        except BadKeyError as error:
            raise self.problem(error) from None

    @cached_property
    def work(self) -> work.Work:
        """The transfers of all jobs and the dependencies between them."""
        try:
            return _work(self.keys, self.network, self.folder)
        except BadKeyError as error:
            raise self.problem(error) from None

    @cached_property
    def mix(self) -> mixed.Mix | None:
        """The policies that workloads name for their transfers; None: they name none."""
        try:
            return mixed.mix_of(self.keys, self.network.hosts, self.work)
        except BadKeyError as error:
            raise self.problem(error) from None

    @cached_property
    def routes(self) -> reroute.Tables:
        """The route tables of the switches, as links go down and up."""
        try:
            return reroute.tables(self.network, self.changes, self.keys["network"]["reroute_ns"])
        except ValueError as error:
            raise self.problem(BadKeyError(("network", "reroute_ns"), str(error))) from None

    @cached_property
    def changes(self) -> Array:
        """The changes of links, in order of time."""
        try:
            made = events.changes(self.network, self.keys["events"], self.seed)
            found = self.keys["faults"]
            if not found:
                return made
            limit_ns = self.keys["limit_ns"]
            more = faults.port_changes(found, self.network, self.faulty_hosts, limit_ns)
            both = np.concatenate([made, more])
            return both[np.argsort(both["at_ns"], kind="stable")]
        except BadKeyError as error:
            raise self.problem(error) from None

    @cached_property
    def plans(self) -> list[planned.Planned]:
        """The links that the plans of [[plans]] assign to paths."""
        tables, paths = self.keys["plans"], self.keys["hosts"]["paths"]
        try:
            return planned.read(tables, self.network, self.work, paths, self.folder)
        except BadKeyError as error:
            raise self.problem(error) from None

    @cached_property
    def faulty_hosts(self) -> Array:
        """The host of each rank of the job whose ranks [[faults]] name."""
        return self.work.hosts[_with_steps(self.keys)]

    @property
    def silences(self) -> list[faults.Silence]:
        """The processes that stop, for a time or for ever, or die."""
        found = self.keys["faults"]
        return faults.silences(found, self.faulty_hosts) if found else []

    def sampled_ports(self) -> Array:
        """The ports whose queue lengths are sampled."""
        try:
            given = self.keys["samples"]["links"]
            return events.ports_of(self.network, given, ("samples", "links"))
        except BadKeyError as error:
            raise self.problem(error) from None

    def check(self) -> Scenario:
        """Builds all parts of the scenario, so that it raises errors before a run; returns self."""
        _ = self.network, self.work, self.mix, self.routes, self.plans, self.sampled_ports()
        try:
            _reachable(self.network, self.work)
            _roomy(self.keys, self.network)
        except BadKeyError as error:
            raise self.problem(error) from None
        return self

    def changed(self, changes: Mapping[str, Any]) -> Scenario:
        """A scenario with some keys changed, as {"network.rate": "200 Gb/s", "limit_ns": 1000}.

        A key of an array of tables without a number, as "workload.size_bytes", changes each table.
        """
        tables = copy.deepcopy(self.tables)
        for key, value in changes.items():
            try:
                _put(tables, key.split("."), value, ())
            except BadKeyError as error:
                raise ScenarioError(
                    f"{key}: {error.text} (set for this run, not in {self.file})"
                ) from None
        bare = replace(self, tables=tables, keys={})
        try:
            return replace(bare, keys=_keys(tables))
        except BadKeyError as error:
            raise bare._changed_problem(error) from None

    def with_faults(self, more: list[Tables], file: str) -> Scenario:
        """A scenario with further [[faults]] after its own ones. file: for errors in them."""
        known = list(self.tables.get("faults", []))
        return replace(self, added=(file, len(known))).changed({"faults": [*known, *more]})

    def content(self) -> str:
        """The scenario as canonical text, for the fingerprint: its keys and its files' digests."""
        kept = {k: v for k, v in self.keys.items() if k not in ("about", "name", "compare")}
        for name in ("faults", "plans"):  # leave out if empty, so that older fingerprints hold
            if not kept[name]:
                del kept[name]
        kept["network"] = dict(kept["network"])
        if not kept["network"]["buffer_bytes"]:  # likewise
            own = kept["network"].items()
            kept["network"] = {k: v for k, v in own if not k.startswith("buffer_")}
        if kept["network"]["reroute_ns"] is None:
            del kept["network"]["reroute_ns"]
        kept = mixed.canonical(kept)
        kept["files"] = self.file_hashes()
        return json.dumps(kept, sort_keys=True, separators=(",", ":"), default=list)

    def file_hashes(self) -> dict[str, str]:
        """SHA-256 of each file that the scenario names (lab, schedule, trace, plan), by name."""
        return {
            name: hashlib.sha256((self.folder / name).read_bytes()).hexdigest()
            for name in sorted(self._files())
        }

    def provenance(self) -> dict[str, str | None]:
        """Name, file and the SHA-256 of the file's text; the hash is None if there is no file.

        The file is without its folder. The hash is that of the text before any key was changed.
        """
        digest = hashlib.sha256(self.text.encode()).hexdigest() if self.text else None
        return {
            "scenario": self.name,
            "scenario_file": Path(self.file).name,
            "scenario_sha256": digest,
        }

    def _files(self) -> set[str]:
        found = {
            one["file"] for one in self.keys["workload"] if one["pattern"] in ("flows", "goal")
        }
        for one in self.keys["workload"]:
            if one["pattern"] == "trace" and one["file"] is not None:
                found |= replayed.files(self.folder, one["file"])
            if one["pattern"] == "chakra" and one["file"] is not None:
                named = chakra.files(self.folder, one["file"])
                found |= {str(file.relative_to(self.folder)) for file in named}
        found |= {self.keys["network"]["lab"], *(one["file"] for one in self.keys["plans"])}
        return {str(one) for one in found if one is not None}


def _put(tables: Any, parts: list[str], value: Any, done: tuple[str, ...]) -> None:
    """Sets a value; creates the missing tables on the way."""
    name, rest = parts[0], parts[1:]
    if isinstance(tables, list):
        if name.isdigit():
            if int(name) >= len(tables):
                raise BadKeyError(
                    done, f"out of range: there are {len(tables)} [[{'.'.join(done)}]]"
                )
            chosen = [tables[int(name)]]
        else:
            chosen, rest = tables, parts
        for one in chosen:
            if not rest:
                raise BadKeyError(done, "is a table: add the name of one of its keys")
            _put(one, rest, value, (*done, name))
        return
    if not rest:
        tables[name] = value
        return
    inner = tables.setdefault(name, [{}] if name == "workload" else {})
    if not isinstance(inner, dict | list):
        raise BadKeyError((*done, name), "is a value, not a table: remove the part after it")
    _put(inner, rest, value, (*done, name))


def _at(tables: Any, path: tuple[str | int, ...]) -> Any:
    """The value of the key at a path, or None."""
    for part in path:
        try:
            tables = tables[part]
        except (KeyError, IndexError, TypeError):
            return None
    return tables


def _keys(tables: Tables) -> Tables:
    """All tables, checked and with defaults; raises BadKeyError for a wrong key."""
    keys = schema.checked(tables, schema.TOP, (), "a scenario")
    keys["network"] = schema.checked(keys["network"], schema.NETWORK, ("network",), "[network]")
    keys["network"]["given"] = sorted(tables.get("network", {}))
    keys["hosts"] = schema.checked(keys["hosts"], schema.HOSTS, ("hosts",), "[hosts]")
    keys["samples"] = schema.checked(keys["samples"], schema.SAMPLES, ("samples",), "[samples]")
    mixed.check_policies(keys["policies"], ("policies",))
    for name, columns in (
        ("events", schema.EVENTS),
        ("nodes", schema.NODES),
        ("links", schema.LINKS),
        ("faults", schema.FAULTS),
        ("plans", schema.PLANS),
    ):
        keys[name] = [
            schema.checked(one, columns, (name, number), f"[[{name}]]")
            for number, one in enumerate(_array(keys, name))
        ]
    keys["workload"] = [
        _workload(one, number) for number, one in enumerate(_array(keys, "workload"))
    ]
    if not keys["workload"]:
        raise BadKeyError(("workload",), 'missing: give a [[workload]], as pattern = "permutation"')
    faults.check(keys["faults"], tables.get("faults", ()))
    _agree(keys)
    return keys


def _agree(keys: Tables) -> None:
    """Raises BadKeyError for keys that contradict each other."""
    hosts, own, every_ns = keys["hosts"], keys["network"], keys["samples"]["every_ns"]
    if hosts["rto_ns_min"] > hosts["rto_ns_max"]:
        raise BadKeyError(("hosts", "rto_ns_min"), "is more than rto_ns_max: lower it")
    if hosts["window_bytes_max"] < hosts["segment_bytes"]:
        raise BadKeyError(("hosts", "window_bytes_max"), "is less than segment_bytes: raise it")
    if own["resume_bytes"] and not own["pause_bytes"]:
        text = "needs pause_bytes, as PFC is off without it: set that, or remove this key"
        raise BadKeyError(("network", "resume_bytes"), text)
    if own["resume_bytes"] >= max(own["pause_bytes"], 1):
        raise BadKeyError(("network", "resume_bytes"), "must be less than pause_bytes: lower it")
    if every_ns and keys["limit_ns"] // every_ns > schema.SAMPLES_MAX:
        least_ns = keys["limit_ns"] // (schema.SAMPLES_MAX + 1) + 1
        text = f"more than {schema.SAMPLES_MAX:,} samples in limit_ns: give at least {least_ns} ns"
        raise BadKeyError(("samples", "every_ns"), text)
    if own["topology"] != "file" and (keys["nodes"] or keys["links"]):
        name = "nodes" if keys["nodes"] else "links"
        raise BadKeyError((name, 0), f'[[{name}]] needs topology = "file": set it')


def _array(keys: Tables, name: str) -> list[Any]:
    return list(keys[name])


def _workload(table: Any, number: int) -> Tables:
    path: tuple[str | int, ...] = ("workload", number)
    every = schema.WORKLOAD["every pattern"]
    pattern = table.get("pattern", "permutation") if isinstance(table, Mapping) else ""
    if isinstance(table, Mapping):
        every["pattern"].read((*path, "pattern"), pattern)
    what = f'a [[workload]] of pattern "{pattern}"'
    found = schema.checked(table, every | schema.WORKLOAD.get(pattern, {}), path, what)
    if pattern == "steps":
        found["operations"] = [
            schema.checked(one, schema.OPERATION, (*path, "operations", at), "an operation")
            for at, one in enumerate(found["operations"])
        ]
    found["mix"] = mixed.checked(found, path)
    return found


def _network(keys: Tables, folder: Path) -> Network:
    own = keys["network"]
    topology = own["topology"]
    if topology == "file":
        return graph.from_tables(keys["nodes"], keys["links"])
    if topology == "lab":
        return shapes.lab(own, folder)
    build = {"fat_tree": shapes.fat_tree, "rail": shapes.rail}
    build |= {"multi_plane": shapes.multi_plane, "dumbbell": shapes.dumbbell}
    return build[topology](own)


PLAIN = {
    "permutation": work.permutation,
    "incast": work.incast,
    "outcast": work.outcast,
    "all_to_all": collectives.all_to_all,
    "all_reduce_ring": collectives.all_reduce_ring,
    "all_reduce_tree": collectives.all_reduce_tree,
    "all_reduce_double_tree": trees.all_reduce_double_tree,
    "all_gather_pat": trees.all_gather_pat,
    "reduce_scatter_pat": trees.reduce_scatter_pat,
    "broadcast": trees.broadcast,
    "reduce": trees.reduce,
    "moe": collectives.moe,
    "reduce_scatter": collectives.reduce_scatter,
    "all_gather": collectives.all_gather,
}


def _work(keys: Tables, network: Network, folder: Path) -> work.Work:
    jobs: list[tuple[str, work.Job, Array, Tables]] = []
    total = 0
    hidden = [_workload(one, 0) for one in faults.second_jobs(keys["faults"])]
    with_faults = _with_steps(keys) if keys["faults"] else None
    for number, own in enumerate([*keys["workload"], *hidden]):
        try:
            hosts = work.ranks_of(own["hosts"], network.hosts)
            chance = work.generator(keys["seed"], 1, number)
            if own["shuffle"]:
                hosts = chance.permutation(hosts)
            found = keys["faults"] if number == with_faults else ()
            job = _job(own, hosts, network, folder, chance, found)
            if number >= len(keys["workload"]):
                job = replace(job, hidden=True)
            total = work.bounded(total + len(job.transfers))
        except work.BadWorkError as error:
            where: tuple[str | int, ...] = ("workload", number, error.key)
            if number >= len(keys["workload"]):
                where = faults.place_of_second_job(
                    keys["faults"], number - len(keys["workload"]), error.key
                )
            raise BadKeyError(where, error.text) from None
        jobs.append((str(own["name"] or own["pattern"]), job, hosts, own))
    return work.place(jobs, keys["seed"])


def _job(
    own: Tables,
    hosts: Array,
    network: Network,
    folder: Path,
    chance: np.random.Generator,
    found: Sequence[Tables],
) -> work.Job:
    pattern = own["pattern"]
    if pattern in ("goal", "chakra"):
        if own["file"] is None:
            example = "trace.goal" if pattern == "goal" else "trace.{rank}.et"
            raise work.BadWorkError("file", f'missing: name a schedule, as file = "{example}"')
        try:
            if pattern == "goal":
                schedule, job = goal.load(folder / own["file"], own["ns_per_calc"])
            else:
                schedule, job = chakra.load(folder, own["file"], own["ops_per_s"])
        except goal.GoalError as error:
            raise work.BadWorkError("file", str(error)) from None
        if len(schedule.ranks) > len(hosts):
            text = f"the schedule has {len(schedule.ranks)} ranks, and there are {len(hosts)} hosts"
            raise work.BadWorkError("file", f"{text}: use more hosts")
        return job
    if pattern == "flows":
        if own["file"] is None:
            raise work.BadWorkError("file", 'missing: name a list of flows, as file = "flows.csv"')
        return flows.load(folder / own["file"], len(hosts))
    if pattern == "steps":
        return steps.job(len(hosts), own, chance, found)
    if pattern == "trace":
        if own["file"] is None:
            raise work.BadWorkError("file", "missing: name a folder with a trace")
        return replayed.job(folder / own["file"], len(hosts), own)
    if pattern == "poisson":
        first = network.first_port[:-1][hosts]
        return work.poisson(len(hosts), own, chance, network.ports["bytes_per_s"][first])
    return PLAIN[pattern](len(hosts), own, chance)


def _with_steps(keys: Tables) -> int:
    """The number of the first job that runs training steps; without one, that of the first job."""
    patterns = [one["pattern"] for one in keys["workload"]]
    return patterns.index("steps") if "steps" in patterns else 0


def _reachable(network: Network, made: work.Work) -> None:
    """Raises BadKeyError if two hosts have traffic and no route between them."""
    one, other = network.group_of[made.transfers["from"]], network.group_of[made.transfers["to"]]
    apart = one != other
    pairs = np.unique(np.stack([one[apart], other[apart]], axis=1), axis=0)
    to = network.ports["to"].astype(np.int64) - network.hosts
    for group, target in pairs.tolist():
        host = int(np.flatnonzero(network.group_of == group)[0])
        switches = to[network.first_port[host] : network.first_port[host + 1]]
        there = np.flatnonzero(network.group_of == target)
        direct = {
            int(x) for x in to[network.first_port[there[0]] : network.first_port[there[0] + 1]]
        }
        if any(network.route[s, target] >= 0 or int(s) in direct for s in switches):
            continue
        which = int(np.flatnonzero((one == group) & (other == target))[0])
        ends = made.transfers[which]
        names = network.node_names
        text = f"no route from {names[ends['from']]} to {names[ends['to']]}: add a link"
        raise BadKeyError(("workload", int(ends["job"]), "hosts"), text)


def _roomy(keys: Tables, network: Network) -> None:
    """Raises BadKeyError for a queue that is smaller than a segment."""
    hosts, ports = keys["hosts"], network.ports
    if keys["network"]["buffer_alpha"] != 1 and not keys["network"]["buffer_bytes"]:
        text = "has no effect without a shared buffer: give buffer_bytes"
        raise BadKeyError(("network", "buffer_alpha"), text)
    least_bytes = hosts["segment_bytes"] + hosts["wire_overhead_bytes"]
    if keys["network"]["buffer_bytes"]:
        held_bytes = shared_queue_bytes(keys["network"])
        if held_bytes < least_bytes:
            text = f"a queue may hold {held_bytes:,} bytes of it, and a segment has {least_bytes:,}"
            raise BadKeyError(("network", "buffer_bytes"), f"{text}: raise it or buffer_alpha")
        return
    # Queues of hosts are enlarged to hold their bursts, so only switches are checked.
    short = (ports["from"] >= network.hosts) & (ports["queue_bytes_max"] < least_bytes)
    if short.any():
        port = ports[int(np.flatnonzero(short)[0])]
        ends = " to ".join(network.node_names[port[end]] for end in ("from", "to"))
        text = f"{ends}: holds {port['queue_bytes_max']:,} bytes, and a segment has {least_bytes:,}"
        key = _queue_key(keys, least_bytes, to_host=port["to"] < network.hosts)
        raise BadKeyError(key, f"{text}: raise it")


def _queue_key(keys: Tables, least_bytes: int, *, to_host: bool) -> tuple[str | int, ...]:
    own = keys["network"]
    if own["topology"] == "file":
        given = [one["queue_bytes"] or least_bytes for one in keys["links"]]
        short = [number for number, held in enumerate(given) if held < least_bytes]
        return ("links", short[0], "queue_bytes") if short else ("links",)
    if own["topology"] == "lab":
        return ("network", "lab")
    uplink = not to_host and own["uplink_queue_bytes"] is not None
    return ("network", "uplink_queue_bytes" if uplink else "queue_bytes")


def parse(
    text: str,
    *,
    file: str = "scenario",
    folder: Path | None = None,
    workload: Sequence[Tables] | None = None,
) -> Scenario:
    """A scenario from the text of a file; raises ScenarioError with one line if it is wrong.

    workload: the jobs, instead of those of the text.
    """
    try:
        tables = toml.parsed(text, file)
    except toml.TomlError as error:
        raise ScenarioError(str(error)) from None
    if workload is not None:
        tables["workload"] = list(workload)
    folder = folder if folder is not None else Path()
    bare = Scenario(tables, {}, file, folder, text)
    try:
        return Scenario(tables, _keys(tables), file, folder, text)
    except BadKeyError as error:
        raise bare.problem(error) from None


def from_tables(tables: Tables, *, file: str = "scenario", folder: Path | None = None) -> Scenario:
    """A scenario from the tables of a file; a ScenarioError has no line number."""
    folder = folder if folder is not None else Path()
    bare = Scenario(tables, {}, file, folder)
    try:
        return Scenario(tables, _keys(tables), file, folder)
    except BadKeyError as error:
        raise bare.problem(error) from None


def shipped() -> dict[str, Path]:
    """The scenarios that are shipped with weft, by name."""
    found = Path(str(resources.files("transport.sim") / "scenarios"))
    return {file.stem: file for file in sorted(found.glob("*.toml"))}


def load(name: str | Path, *, workload: Sequence[Tables] | None = None) -> Scenario:
    """Loads a scenario from a file, or by the name of one that is shipped with weft.

    workload: the jobs, instead of those of the file.
    """
    file = Path(name)
    if not file.is_file():
        known = shipped()
        if str(name) not in known:
            told = f"no such file and no shipped scenario{nearest(str(name), list(known))}"
            beside = Path(f"{name}.toml")
            if beside.is_file():
                told = f"no such file; did you mean {beside}?"
            raise ScenarioError(f"{name}: {told}")
        file = known[str(name)]
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{file}: cannot be read: {error}") from None
    return parse(text, file=str(file), folder=file.parent, workload=workload)
