"""A training step as a whole: its time, what is exposed of it, memory, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transport.estimate.activations import repeated_passes
from transport.estimate.computation import Computation, of_gpu
from transport.estimate.gpus import Gpu
from transport.estimate.memory import Memory, above_of, memory_of
from transport.estimate.models import Model
from transport.estimate.networks import Link, Network
from transport.estimate.pipelines import chunks_of
from transport.estimate.plan import Plan, PlanError
from transport.estimate.rounds import Rounds, length_ns, rounds_of
from transport.estimate.schedule import COMPUTE, Graph, Task, Timed, exposed_ns, run, sending
from transport.estimate.sites import with_site_link
from transport.estimate.slices import waiting
from transport.estimate.step import Step
from transport.estimate.times import difference_ns


@dataclass(frozen=True)
class Row:
    """One kind of communication of a GPU in a step. bytes: of the operation, as nccl-tests count.

    count: number of operations, of all stages together. exposed_ns: by how much the step
    would be shorter without it. extrapolated: outside of the range that the network was fitted to.
    """

    kind: str
    operation: str
    algorithm: str
    protocol: str
    ranks: int
    nodes: int
    count: float
    bytes: float
    each_ns: float
    total_ns: float
    exposed_ns: float
    limited_by: str
    extrapolated: bool


@dataclass(frozen=True)
class Training:
    """The estimate of a step. model: its name. compute_ns: what the busiest stage computes.

    bubble_ns: what it waits for other stages even if communication took no time. exposed_ns: what
    communication adds. host_ns: what the GPU waits for the host, which launches kernels. gains:
    change -> the step's time with it, divided by its time without it. scheduled: microbatches of
    `tasks` and `timed`, which are fewer than those of a long step. flops_per_gpu: operations a
    second, with those of recomputation; model_flops_per_gpu: without; causal_flops_per_gpu: without
    the half of attention that a causal mask leaves out, too. mfu, hfu: model FLOPs and hardware
    FLOPs utilization, the former two as parts of the GPU's dense peak in bf16. memory_high_bytes:
    the memory if it is as much above its estimate as published peaks were. fits_surely: it fits
    even then. offloaded_bytes: the memory with what is kept of layers in the host's memory; None:
    it is there, or the framework cannot.
    """

    model: str
    step_ns: float
    compute_ns: float
    bubble_ns: float
    exposed_ns: float
    host_ns: float
    communication_ns: float
    flops_per_gpu: float
    model_flops_per_gpu: float
    causal_flops_per_gpu: float
    mfu: float
    hfu: float
    tokens_per_s: float
    rows: tuple[Row, ...]
    memory: Memory
    memory_high_bytes: float
    fits: bool
    fits_surely: bool
    offloaded_bytes: float | None
    bottleneck: str
    gains: dict[str, float]
    unchecked: tuple[str, ...]
    tasks: tuple[Task, ...]
    timed: Timed
    scheduled: int


@dataclass(frozen=True)
class _Timed:
    """A step whose tasks were scheduled one by one.

    times_ns: its length, that without communication, and that of the busiest stage's computation.
    """

    tasks: tuple[Task, ...]
    timed: Timed
    times_ns: tuple[float, float, float]
    rows: tuple[Row, ...]


def train(
    model: Model, plan: Plan, gpu: Gpu, network: Network, computation: Computation | None = None
) -> Training:
    """Estimates a step. PlanError if the plan does not fit the model.

    A step of many microbatches is extended from shorter ones (rounds.py).

    computation: as measured on one GPU; None: from the GPU's peak.
    """
    plan.check(model)
    check_nodes(plan, network.gpus_per_node)
    check_torus(plan, network)
    computation = computation or of_gpu(model, plan, gpu)
    step = Step(model, plan, computation, network)
    rounds = rounds_of(step)
    made = [_timed(one) for one in rounds.steps]
    whole_ns, alone_ns, busy_ns = (
        rounds.extended(each) for each in zip(*(one.times_ns for one in made), strict=True)
    )
    whole_ns *= waiting(network.slices)
    step_ns = max(whole_ns, launch_ns(step))
    bubble_ns = difference_ns(alone_ns, busy_ns)
    host_ns = difference_ns(step_ns, whole_ns)
    rows = _extended([one.rows for one in made], rounds)
    memory = memory_of(model, plan)
    high_bytes, has_bytes = memory.total * (1 + above_of(plan)), gpu.memory_bytes
    return Training(
        model=model.name,
        step_ns=step_ns,
        compute_ns=busy_ns,
        bubble_ns=bubble_ns,
        exposed_ns=difference_ns(whole_ns, alone_ns),
        host_ns=host_ns,
        communication_ns=sum(row.total_ns for row in rows) / plan.pipeline,
        **_rates(model, plan, gpu, step_ns),
        rows=rows,
        memory=memory,
        memory_high_bytes=high_bytes,
        fits=memory.total <= has_bytes,
        fits_surely=high_bytes <= has_bytes,
        offloaded_bytes=_offloaded_bytes(model, plan),
        bottleneck=_bottleneck(step_ns, bubble_ns, host_ns, rows),
        gains=_gains(model, plan, computation, network, step_ns),
        unchecked=tuple(plan.unchecked()),
        tasks=made[-1].tasks,
        timed=made[-1].timed,
        scheduled=rounds.steps[-1].plan.microbatches,
    )


def _rates(model: Model, plan: Plan, gpu: Gpu, step_ns: float) -> dict[str, float]:
    """Fields of Training about operations and tokens a second."""
    tokens = plan.global_batch * model.sequence
    per_gpu = 1e9 / step_ns / plan.gpus
    flops = model.step_flops(tokens) * per_gpu
    all_flops = model.step_flops(tokens, repeated_passes(model, plan)) * per_gpu
    return {
        "flops_per_gpu": all_flops,
        "model_flops_per_gpu": flops,
        "causal_flops_per_gpu": flops - model.masked_flops(tokens) * per_gpu,
        "mfu": flops / gpu.flops,
        "hfu": all_flops / gpu.flops,
        "tokens_per_s": tokens / step_ns * 1e9,
    }


def _offloaded_bytes(model: Model, plan: Plan) -> float | None:
    if plan.framework != "maxtext" or plan.offload:
        return None
    other = replace(plan, recompute=False, selective="", kept=plan.kept or (), offload=True)
    return memory_of(model, other).total


def rows_of(step: Step) -> tuple[Row, ...]:
    """The kinds of communication of a step, without all else that train() finds."""
    rounds = rounds_of(step)
    return _extended([_timed(one).rows for one in rounds.steps], rounds)


def check_nodes(plan: Plan, each: int) -> None:
    """Raises PlanError if nodes of `each` GPUs are not full, or a layer's GPUs do not fit them."""
    if plan.gpus > each and plan.gpus % each:
        raise PlanError(
            f"data: {plan.gpus} GPUs in all: must be a multiple of the {each} GPUs of a node, or "
            "less",
            f"{plan.gpus:,} GPUs do not fill nodes of {each}",
        )
    parts = plan.expert_parts
    if parts != plan.tensor and plan.gpus > each and each % parts and parts % each:
        raise PlanError(
            f"expert_tensor: {parts}: must divide the {each} GPUs of a node, or fill nodes"
        )
    shared = plan.tensor * plan.context
    if plan.gpus > each and each % shared and shared % each:
        raise PlanError(
            f"tensor: {shared} GPUs share a layer: they must divide the {each} GPUs of "
            "a node, or fill nodes",
            f"tensor x context neither divides the {each} GPUs of a node nor fills nodes",
        )


def check_torus(plan: Plan, network: Network) -> None:
    """Raises PlanError if the network is a torus of another size, or the plan is not for one."""
    if network.torus is None:
        return
    for name in ("pipeline", "context", "expert", "expert_tensor"):
        if getattr(plan, name) > 1:
            raise PlanError(
                f"{name}: {getattr(plan, name)}: on a torus, only data, tensor and shard are "
                "estimated: give 1"
            )
    chips = network.slices * network.torus.chips
    if plan.gpus != chips:
        of = f"{network.slices} slices of {network.torus} have" if network.slices > 1 else ""
        raise PlanError(
            f"data: {plan.gpus:,} accelerators in all (data x tensor): "
            f"{of or f'the torus {network.torus} has'} {chips:,}"
        )


def launch_ns(step: Step) -> float:
    """Time in ns that the host of the busiest stage needs to launch the kernels of a step."""
    plan = step.plan
    layers = [
        sum(step.layers_of(chunk) for chunk in chunks_of(plan, stage))
        for stage in range(plan.pipeline)
    ]
    return step.computation.host_ns * plan.microbatches * max(layers) / step.model.layers


def _timed(step: Step) -> _Timed:
    """Schedules the tasks of a step."""
    tasks = tuple(step.build())
    graph = Graph(tasks)
    timed = run(graph, slowdown=step.network.slowdown)
    alone_ns = run(graph, sending(tasks)).length_ns
    times_ns = (timed.length_ns, alone_ns, _busy_ns(tasks))
    return _Timed(tasks, timed, times_ns, tuple(_rows(step, graph)))


def _extended(made: Sequence[tuple[Row, ...]], rounds: Rounds) -> tuple[Row, ...]:
    """The rows of the whole step. made: those of each step that was scheduled."""
    return tuple(
        replace(
            each[-1],
            count=round(rounds.extended([row.count for row in each])),
            total_ns=rounds.extended([row.total_ns for row in each]),
            exposed_ns=max(rounds.extended([row.exposed_ns for row in each]), 0.0),
        )
        for each in zip(*made, strict=True)
    )


def _busy_ns(tasks: Sequence[Task]) -> float:
    """Computation of the busiest stage."""
    busy: dict[int, list[float]] = {}
    for task in tasks:
        if task.kind == COMPUTE:
            busy.setdefault(task.stage, []).append(task.ns)
    return max(sum(each) for each in busy.values())


def _rows(step: Step, graph: Graph) -> list[Row]:
    exposed = exposed_ns(graph, step.network.slowdown)
    totals: dict[str, float] = {}
    for task in graph.tasks:
        totals[task.kind] = totals.get(task.kind, 0.0) + task.ns
    made = []
    for kind, (message, count) in sorted(step.used.items()):
        made.append(
            Row(
                kind,
                message.operation,
                message.each.algorithm,
                message.each.protocol,
                message.group.ranks,
                message.group.nodes(step.network.gpus_per_node),
                count,
                message.size_bytes,
                message.each.time_ns,
                totals.get(kind, 0.0),
                exposed.get(kind, 0.0),
                message.each.limited_by,
                kind in step.beyond,
            )
        )
    return made


def _bottleneck(step_ns: float, bubble_ns: float, host_ns: float, rows: tuple[Row, ...]) -> str:
    """Name of the part that takes most time beside computation; "computation" if it is short."""
    parts = {f"communication of {row.kind} ({row.limited_by})": row.exposed_ns for row in rows}
    parts["waiting for other pipeline stages"] = bubble_ns
    parts["the host, which launches kernels"] = host_ns
    worst = max(parts, key=lambda one: parts[one])
    return worst if parts[worst] > 0.05 * step_ns else "computation"


def _gains(
    model: Model, plan: Plan, computation: Computation, network: Network, step_ns: float
) -> dict[str, float]:
    changes: dict[str, Callable[[], tuple[Plan, Network]]] = {
        "twice the bandwidth between nodes": lambda: (plan, faster(network, 2.0)),
        "half the bandwidth between nodes": lambda: (plan, faster(network, 0.5)),
        "half the latency": lambda: (plan, quicker(network, 0.5)),
        "buckets of twice the size": lambda: (
            replace(plan, bucket_bytes=2 * plan.bucket_bytes),
            network,
        ),
        "buckets of half the size": lambda: (
            replace(plan, bucket_bytes=max(plan.bucket_bytes // 2, 1)),
            network,
        ),
    }
    if network.sites is not None:
        wider = with_site_link(
            network, lambda link: replace(link, bytes_per_s=2 * link.bytes_per_s)
        )
        near = with_site_link(network, lambda link: scaled(link, 0.5))
        changes["twice the bandwidth between sites"] = lambda: (plan, wider)
        changes["half the latency between sites"] = lambda: (plan, near)
    if (link := network.outside) is not None:
        quick = replace(network, outside=replace(link, bytes_per_s=2.0 * link.bytes_per_s))
        changes["twice the bandwidth between slices"] = lambda: (plan, quick)
    made = {}
    for name, change in changes.items():
        other, net = change()
        if net == network and (plan.zero == 3 or plan.group("data").ranks == 1):
            made[name] = 1.0  # without buckets
            continue
        step = Step(model, other, computation, net)
        made[name] = max(length_ns(step), launch_ns(step)) / step_ns
    return made


def faster(network: Network, factor: float) -> Network:
    """The network with another rate between nodes."""

    def changed(one: Link) -> Link:
        return replace(one, bytes_per_s=one.bytes_per_s * factor)

    pairs = None if network.pairs is None else changed(network.pairs)
    return replace(network, between=changed(network.between), pairs=pairs)


def quicker(network: Network, factor: float) -> Network:
    """The network with other latencies, of calls and of steps."""

    inside = None if network.inside is None else scaled(network.inside, factor)
    pairs = None if network.pairs is None else scaled(network.pairs, factor)
    between = scaled(network.between, factor)
    return replace(network, between=between, inside=inside, pairs=pairs)


def scaled(link: Link, factor: float) -> Link:
    """The link with other latencies, of calls and of steps."""
    protocols = tuple(
        replace(
            each,
            base_ns=each.base_ns * factor,
            step_ns=each.step_ns * factor,
            tree_more_ns=each.tree_more_ns * factor,
        )
        for each in link.protocols
    )
    return replace(link, protocols=protocols)


def as_json(found: Training) -> dict[str, Any]:
    """The estimate as JSON, without its tasks."""
    names = (
        *("step_ns", "compute_ns", "bubble_ns", "exposed_ns", "host_ns", "communication_ns"),
        *(
            *("flops_per_gpu", "model_flops_per_gpu", "causal_flops_per_gpu", "mfu", "hfu"),
            *("tokens_per_s", "fits", "fits_surely", "memory_high_bytes"),
            "offloaded_bytes",
            "bottleneck",
            "gains",
            "unchecked",
        ),
    )
    made = {name: getattr(found, name) for name in names}
    made["operations"] = [vars(row) for row in found.rows]
    memory = found.memory
    made["memory_bytes"] = vars(memory) | {
        name: getattr(memory, name) for name in ("unused", "allocated", "reserved", "total")
    }
    return made
