"""The tasks of a training step: computation and communication of one GPU of each pipeline stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from transport.estimate.activations import (
    attention_share,
    repeated_passes,
    tokens_of,
    weights_share,
)
from transport.estimate.collectives import Estimate, estimate
from transport.estimate.computation import Computation
from transport.estimate.models import Model
from transport.estimate.networks import Network
from transport.estimate.passes import Message, Parts, Pass, Reduced, begin_of
from transport.estimate.pipelines import BACKWARD, FORWARD, INPUTS, WEIGHTS, chunks_of, order
from transport.estimate.plan import Group, Plan, PlanError
from transport.estimate.schedule import COMPUTE, IDLE, Task
from transport.estimate.sharing import Spread
from transport.estimate.sites import crossing, estimate as estimate_on_sites
from transport.estimate.slices import estimate as estimate_on_slices

MAIN = "main"  # the stream of computation, and of communication that computation waits for
ASIDE = "aside"  # the stream of communication that runs beside another microbatch's computation
BESIDE = "beside"  # the stream of communication that runs in parts beside the same computation
PASSES_MAX = 200_000  # maximum number of passes that are scheduled one by one in a step
PARTS_MAX = 16  # maximum number of parts of a layer's gradients
# Kind -> operation of layers whose tokens are split, and of GPUs that share an expert.
SPLIT = {"tensor gathers": "all_gather", "tensor scatters": "reduce_scatter"}
SHARED = {"expert gathers": "all_gather", "expert scatters": "reduce_scatter"}


@dataclass
class Step:
    """Builds the tasks. used: every kind of communication -> its first operation, and how often.

    known, passes_of: estimates and passes so far. beyond: kinds with operations outside of the
    network's range. is_last_batch: whether tasks that are added are of the last microbatch.
    """

    model: Model
    plan: Plan
    computation: Computation
    network: Network
    tasks: list[Task] = field(default_factory=list)
    used: dict[str, tuple[Message, int]] = field(default_factory=dict)
    known: dict[tuple[str, float, int, int, int], Estimate] = field(default_factory=dict)
    beyond: set[str] = field(default_factory=set)
    is_last_batch: bool = True
    passes_of: dict[str, Pass] = field(default_factory=dict)

    @property
    def tokens(self) -> float:
        """Tokens of a microbatch on one GPU."""
        return tokens_of(self.model, self.plan)

    @property
    def passes(self) -> int:
        """Passes that are scheduled one by one: of chunks or, if each is reduced, of layers."""
        plan = self.plan
        each = plan.pipeline * plan.interleave
        return 2 * plan.microbatches * (self.model.layers if plan.splits_gradients else each)

    @property
    def last_chunk(self) -> int:
        return self.plan.pipeline * self.plan.interleave - 1

    def layers_of(self, chunk: int) -> int:
        """Layers of a chunk; the first chunks have one more if they cannot be equal."""
        chunks = self.last_chunk + 1
        return self.model.layers // chunks + (chunk < self.model.layers % chunks)

    def pass_of(self, kind: str) -> Pass:
        """What each layer does in a pass of a kind of pipelines.py."""
        if kind not in self.passes_of:
            self.passes_of[kind] = self._pass_of(kind)
        return self.passes_of[kind]

    def _pass_of(self, kind: str) -> Pass:
        computed, again = self.computation, repeated_passes(self.model, self.plan)
        if kind == FORWARD:
            return Pass(kind, computed.forward_ns, 2, 1.0)
        share = weights_share(self.model)
        if kind == WEIGHTS:
            return Pass(kind, share * computed.backward_ns, 0, 0.0)
        ns = computed.backward_ns * (1.0 - share if kind == INPUTS else 1.0)
        kept = self.plan.kept
        sums = 4 if self.plan.recompute else 2
        # MaxText repeats attention's last product unless it is kept, and not the MLP's.
        sums += kept is not None and "out_proj" not in kept
        repeated_ns = computed.repeated_ns or again * computed.forward_ns
        return Pass(kind, ns + repeated_ns, sums, 2.0 + again)

    def message(
        self,
        kind: str,
        operation: str,
        group: Group,
        size_bytes: float,
        times: int = 1,
        nodes: int | None = None,
    ) -> Estimate | None:
        """Counts operations, and estimates one of them. None: the group has one rank.

        nodes: of the two ranks of a send; None: two if the group spans several.
        """
        if group.ranks < 2:
            return None
        ranks, spanned = group.ranks, group.nodes(self.network.gpus_per_node)
        if operation == "send":
            ranks, spanned = 2, min(spanned, 2)
        nodes = spanned if nodes is None else nodes
        # Groups of as many ranks differ by their axes on a torus, and by leaves in a fat tree.
        key = operation, size_bytes, ranks, nodes, group.stride
        if key not in self.known:
            self.known[key] = self._estimated(operation, size_bytes, ranks, nodes, group)
        each = self.known[key]
        if self.network.extrapolates(operation, size_bytes, ranks):
            self.beyond.add(kind)
        found, count = self.used.get(kind, (Message(kind, operation, group, size_bytes, each), 0))
        self.used[kind] = found, count + times
        return each

    def _estimated(
        self, operation: str, size_bytes: float, ranks: int, nodes: int, group: Group
    ) -> Estimate:
        if self.network.sites is not None:
            return estimate_on_sites(self.network, operation, size_bytes, group, nodes)
        if self.network.torus is None:
            each = self.network.gpus_per_node
            spread = Spread(max(group.stride // each, 1), group.nodes(each))
            return estimate(self.network, operation, size_bytes, ranks, nodes=nodes, spread=spread)
        return estimate_on_slices(self.network, operation, size_bytes, group)

    def add(
        self, name: str, stage: int, stream: str, kind: str, ns: float, after: Sequence[str] = ()
    ) -> str:
        share = self.used[kind][0].each.nic_share if kind in self.used else 0.0
        self.tasks.append(Task(name, stage, stream, kind, ns, tuple(after), nic_share=share))
        return name

    def send(
        self,
        name: str,
        stage: int,
        stream: str,
        kind: str,
        sent: Estimate | None,
        after: Sequence[str],
        to: int | None = None,
    ) -> str:
        """Adds a task that communicates. to: the stage it sends to, if that is another."""
        share = 0.0 if sent is None else sent.nic_share
        self.tasks.append(
            Task(name, stage, stream, kind, ns_of(sent), tuple(after), sent, share, to)
        )
        return name

    def build(self) -> list[Task]:
        """All tasks of the step. PlanError if there are too many."""
        plan = self.plan
        if self.passes > PASSES_MAX:
            raise PlanError(
                f"global_batch: {plan.microbatches} microbatches: at most {PASSES_MAX:,} passes of "
                f"chunks, or with ZeRO 2 and 3 of layers, are scheduled, not {self.passes:,}"
            )
        for stage in range(plan.pipeline):
            reduced: list[str] = []
            if plan.schedule == "dualpipe":
                self.add(f"idle {stage}", stage, MAIN, IDLE, self._dual_pipe_bubble_ns())
            for kind, chunk, batch in order(plan, stage):
                if kind == FORWARD:
                    self._forward(stage, chunk, batch)
                elif kind == WEIGHTS:
                    reduced += self._weights(stage, chunk, batch)
                else:
                    reduced += self._backward(stage, chunk, batch, self.pass_of(kind))
            self._optimizer(stage, reduced)
        return self.tasks

    def _dual_pipe_bubble_ns(self) -> float:
        """The bubble of DualPipe (pipelines.py), whose passes are not simulated between stages."""
        layers = self.layers_of(0)
        forward, backward, weights = (
            layers * self.pass_of(kind).ns for kind in (FORWARD, BACKWARD, WEIGHTS)
        )
        each = forward + 2 * backward - 3 * weights
        return max((self.plan.pipeline / 2 - 1) * each, 0.0)

    @property
    def waits_for_stages(self) -> bool:
        """Whether passes of different stages are simulated as waiting for each other."""
        return self.plan.schedule != "dualpipe"

    def _forward(self, stage: int, chunk: int, batch: int) -> None:
        name = f"forward {chunk}.{batch}"
        after = [f"{name} from {chunk - 1}"] if chunk and self.waits_for_stages else []
        self._layers(name, stage, chunk, self.pass_of(FORWARD), after, gathers=self._gathers(batch))
        if chunk == self.last_chunk:
            self.add(name, stage, MAIN, COMPUTE, self.computation.head_forward_ns)
            return
        self.add(name, stage, MAIN, COMPUTE, 0.0)
        self._send(f"forward {chunk + 1}.{batch} from {chunk}", stage, 1, name)

    def _backward(self, stage: int, chunk: int, batch: int, work: Pass) -> list[str]:
        """Adds a chunk's backward pass; returns the names of the tasks that reduce gradients."""
        name = f"backward {chunk}.{batch}"
        after = [f"forward {chunk}.{batch}"]
        if chunk == self.last_chunk:
            head_ns = self.computation.head_backward_ns
            after = [self.add(f"{name} head", stage, MAIN, COMPUTE, head_ns, after)]
        elif self.waits_for_stages:
            after.append(f"{name} from {chunk + 1}")
        early = [f"forward {chunk}.{batch}"]
        gathers = self.plan.zero == 3 and not self.plan.keeps_gathered
        reduces = self._reduces(work, batch)
        reduced = self._layers(name, stage, chunk, work, after, reduces, gathers, early)
        self.add(name, stage, MAIN, COMPUTE, 0.0)
        if chunk:
            self._send(f"backward {chunk - 1}.{batch} from {chunk}", stage, -1, name)
        return reduced

    def _weights(self, stage: int, chunk: int, batch: int) -> list[str]:
        """Adds the late part of a backward pass; returns the names of tasks that reduce."""
        work = self.pass_of(WEIGHTS)
        after = [f"backward {chunk}.{batch}"]
        name = f"weights {chunk}.{batch}"
        return self._layers(name, stage, chunk, work, after, self._reduces(work, batch))

    def _reduces(self, work: Pass, batch: int) -> bool:
        """Whether gradients are reduced after the pass."""
        last = self.plan.microbatches - (2 if self.plan.schedule == "dualpipe" else 1)
        self.is_last_batch = batch >= last
        return work.makes_gradients and (self.plan.splits_gradients or batch >= last)

    def _gathers(self, batch: int) -> bool:
        """Whether parameters are gathered layer by layer before a microbatch's forward pass."""
        first = 2 if self.plan.schedule == "dualpipe" else 1
        if self.plan.overlap_gather:
            return batch < first
        return self.plan.zero == 3 and (batch < first or not self.plan.keeps_gathered)

    def _layers(
        self,
        name: str,
        stage: int,
        chunk: int,
        work: Pass,
        after: list[str],
        reduces: bool = False,
        gathers: bool = False,
        early: list[str] | None = None,
    ) -> list[str]:
        """The layers of a chunk, one after the other on the stage's main stream.

        after: what the first layer waits for; early: what gathering its parameters waits for, if
        that is less. Returns the names of the tasks that reduce gradients. Layers that neither
        gather parameters nor reduce gradients are one task each for their computation and
        communication.
        """
        count = self.layers_of(chunk)
        if not reduces and not gathers:
            ns = sum(self._layer_ns(chunk, layer, work, False) for layer in range(count))
            self.add(f"{name} layers", stage, MAIN, COMPUTE, ns, after)
            self._between_parts(f"{name} layers", stage, work, count)
            return []
        if gathers and work.kind == FORWARD:
            self._gather_ends(name, stage, chunk, [] if self.plan.overlap_gather else after)
        gathered: list[str] = []
        # The gradients of the logits' parameters are ready before those of any layer.
        buckets = Reduced(self.ends_parameters(chunk)[1] * self.plan.gradient_bytes)
        for layer in range(count):
            wait = list(after) if layer == 0 else []
            if gathers:
                waits = early or after, after
                self._gather_ahead(name, stage, min(layer + 2, count), waits, gathered)
                wait.append(gathered[layer])
            if self.plan.zero == 3 and reduces and layer >= 2:
                # PyTorch's FSDP waits until the buffer of gradients is free again.
                wait.append(f"{name} gradients {layer - 2}")
            whole = f"{name} layer {layer}"
            ns = self._layer_ns(chunk, layer, work, reduces)
            if reduces:
                self._reduced_layer(name, stage, chunk, layer, ns, wait, buckets)
            else:
                self.add(whole, stage, MAIN, COMPUTE, ns, wait)
            self._between_parts(whole, stage, work, 1)
        return buckets.reduced

    def _reduced_layer(
        self,
        name: str,
        stage: int,
        chunk: int,
        layer: int,
        ns: float,
        wait: list[str],
        buckets: Reduced,
    ) -> None:
        """A layer whose gradients are reduced, in parts if buckets are smaller than it is."""
        plan, whole = self.plan, f"{name} layer {layer}"
        made = self.shared_parameters * plan.gradient_bytes
        parts = self._parts_of(made)
        for part in range(parts):
            one = whole if part == parts - 1 else f"{whole} part {part}"
            self.add(one, stage, MAIN, COMPUTE, ns / parts, wait if part == 0 else [])
            buckets.waiting_bytes += made / parts
            ends = layer == self.layers_of(chunk) - 1 and part == parts - 1
            if ends:
                buckets.waiting_bytes += self.ends_parameters(chunk)[0] * plan.gradient_bytes
            full = plan.zero != 3 and buckets.waiting_bytes >= plan.bucket_bytes
            if full or ends or (plan.zero == 3 and part == parts - 1):
                each = f"{name} gradients {buckets.count}"
                buckets.reduced.append(self._reduce(each, stage, buckets.waiting_bytes, one))
                buckets.waiting_bytes, buckets.count = 0.0, buckets.count + 1
        if self.expert_parameters:
            buckets.reduced.append(self._reduce_experts(f"{name} experts {layer}", stage, whole))

    def _layer_ns(self, chunk: int, layer: int, work: Pass, reduces: bool) -> float:
        """A layer's time, with the embedding's before the first, and after the last in backward.

        FSDP copies a layer's parameters out of the buffer that they were gathered in, and both it
        and DDP copy gradients into the buffer that is reduced.
        """
        computed, plan = self.computation, self.plan
        ns = work.ns
        if plan.replicas > 1:
            copied = plan.value_bytes * (plan.zero == 3) + plan.gradient_bytes * reduces
            ns += copied * self.layer_parameters * computed.copy_ns
        if chunk == 0 and work.kind == FORWARD and layer == 0:
            ns += computed.embedding_forward_ns
        if chunk == 0 and work.makes_gradients and layer == self.layers_of(0) - 1:
            ns += computed.embedding_backward_ns
        return ns

    def _parts_of(self, gradient_bytes: float) -> int:
        """Parts in which a layer's gradients become ready: buckets may be smaller than a layer."""
        if self.plan.zero == 3:
            return 1
        return min(max(round(gradient_bytes / self.plan.bucket_bytes), 1), PARTS_MAX)

    def _gather_ends(self, name: str, stage: int, chunk: int, after: list[str]) -> None:
        """FSDP: gathers the parameters of the embedding and of the logits, before forward."""
        if count := sum(self.ends_parameters(chunk)):
            size, group = count * self.plan.value_bytes, self.plan.group("shard")
            sent = self.message("embeddings", "all_gather", group, size)
            self.send(f"{name} embeddings", stage, "data", "embeddings", sent, after)

    def _between_parts(self, name: str, stage: int, work: Pass, layers: int) -> None:
        """Adds the communication between parts of layers that the next layer waits for.

        name: of the layers' computation. DualPipe runs communication beside the computation of a
        microbatch in the other direction.
        """
        values = self.tokens * self.model.hidden * self.plan.value_bytes
        stream = MAIN if self.waits_for_stages else ASIDE
        for kind, parts in self._tensor_parts(values, work, layers).items():
            self._wait(name, stage, stream, kind, layers, parts)
        if ns := self._exchange_ns(values, work, layers):
            self.add(f"{name} experts", stage, stream, "expert", layers * ns, [name])
        if self.plan.context > 1 and work.rings:
            self._wait(name, stage, stream, "context", layers, self._context_parts(work, layers))

    def _wait(
        self, name: str, stage: int, stream: str, kind: str, layers: int, parts: Parts
    ) -> None:
        """Adds communication of layers after their computation, `name`, and beside it.

        What runs beside it is a task only if others could meet it at the NIC.
        """
        after = [name]
        if parts.beside_ns and self.used[kind][0].each.nic_share:
            begin, ns = begin_of(self.tasks, name), layers * parts.beside_ns
            after.append(self.add(f"{name} beside {kind}", stage, BESIDE, kind, ns, begin))
        self.add(f"{name} {kind}", stage, stream, kind, layers * parts.waited_ns, after)

    def least_layer_ns(self, kind: str) -> float:
        """Time in ns that a layer's pass takes at least: computation, and what it waits for."""
        work, plan = self.pass_of(kind), self.plan
        if not self.waits_for_stages:
            return work.ns
        values = self.tokens * self.model.hidden * plan.value_bytes
        ns = work.ns + sum(one.waited_ns for one in self._tensor_parts(values, work, 1).values())
        ns += self._exchange_ns(values, work, 1)
        if plan.context > 1 and work.rings:
            ns += self._context_parts(work, 1).waited_ns
        return ns

    def _exchange_ns(self, values: float, work: Pass, layers: int) -> float:
        """Time in ns that a layer waits for the AllToAlls of its experts.

        With sequence parallelism each tensor parallel rank sends its own tokens.
        """
        plan, model = self.plan, self.model
        if model.experts == 1 or not work.sums:
            return 0.0
        routed = values * model.routed / (plan.tensor if plan.sequence else 1)
        group, times = plan.group("expert"), work.sums * layers
        return work.sums * ns_of(self.message("expert", "all_to_all", group, routed, times))

    def _context_parts(self, work: Pass, layers: int) -> Parts:
        """Communication of keys and values among context parallel ranks, of each of the layers.

        They go around a ring. With `overlap_context` attention computes with those that are there,
        as with Megatron-LM's --cp-comm-type p2p, and what takes longer than its part is exposed.
        """
        plan, model = self.plan, self.model
        kv = 2 * self.tokens * (model.kv_heads or model.heads) * model.head_size
        size = kv * plan.value_bytes / plan.tensor
        times = layers * (plan.context - 1)
        sent = self.message("context", "send", plan.group("context"), size, times)
        part_ns = 0.0
        if plan.overlap_context and self.waits_for_stages:
            part_ns = attention_share(model) * work.ns / plan.context
        ns = work.rings * ns_of(sent)
        return Parts(min(ns, part_ns), max(ns - part_ns, 0.0)).times(plan.context - 1)

    def _tensor_parts(self, values: float, work: Pass, layers: int) -> dict[str, Parts]:
        """Kind -> tensor parallel operations, of each of the layers.

        With sequence parallelism each AllReduce is an AllGather and a ReduceScatter (Korthikanti et
        al., arXiv 2205.05198, section 4.2.2). With `overlap` an operation of t ranks runs in t
        parts beside the products, all but one of which can hide (Wang et al., "Overlap
        Communication with Dependent Computation via Decomposition", ASPLOS 2023). The ranks that
        share an expert gather the tokens that an AllToAll brought, and scatter the sums
        (Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py).
        """
        plan, sums = self.plan, work.sums
        used = SPLIT if plan.sequence else {"tensor": "all_reduce"}
        if (plan.tensor == 1 and plan.expert_parts == 1) or not sums:
            return {}
        # Experts whose tokens are split have operations of their own; shared ones are as the rest.
        routes = self.model.experts > 1 and (plan.sequence or plan.tensor == 1)
        sums -= sums // 2 if routes and not self.model.shared else 0
        made = self._operations_ns(used, "tensor", values, sums, layers)
        whole_ns, hidden_ns = sum(made.values()), 0.0
        # DualPipe's operations run beside another microbatch, whose products cannot hide more.
        if plan.overlap and self.waits_for_stages and whole_ns:
            products_ns = (1 - attention_share(self.model)) * work.ns
            hidden_ns = min(whole_ns * (1 - 1 / plan.tensor), products_ns)
        share = hidden_ns / whole_ns if whole_ns else 0.0
        parts = {kind: Parts(ns * share, ns * (1 - share)) for kind, ns in made.items()}
        if routes:
            size = values * self.model.routed * plan.expert_parts / plan.tensor
            shared = self._operations_ns(SHARED, "expert parts", size, work.sums // 2, layers)
            parts |= {kind: Parts(0.0, ns) for kind, ns in shared.items()}
        return parts

    def _operations_ns(
        self, used: Mapping[str, str], group: str, size_bytes: float, times: int, layers: int
    ) -> dict[str, float]:
        """Kind -> time in ns of `times` operations of a layer. used: kind -> operation."""
        among = self.plan.group(group)
        return {
            kind: times * sent.time_ns
            for kind, operation in used.items()
            if (sent := self.message(kind, operation, among, size_bytes, times * layers))
        }

    def _gather_ahead(
        self,
        name: str,
        stage: int,
        end: int,
        waits: tuple[list[str], list[str]],
        gathered: list[str],
    ) -> None:
        """FSDP: gathers the layers before `end` that are not yet `gathered`.

        waits: what the first layer's gathering waits for, and the second one's. In backward FSDP2
        gathers the first layer beside the logits, whose gradients it needs first.

        The next layer is gathered before the current layer computes, and so before the current
        layer's gradients are scattered: a communicator runs operations in the order of their calls.
        """
        for layer in range(len(gathered), end):
            each = f"{name} parameters {layer}"
            gathered.append(self._gather(each, stage, name, layer, waits[min(layer, 1)]))

    def _gather(self, name: str, stage: int, owner: str, layer: int, after: list[str]) -> str:
        """FSDP: the parameters of a layer. One layer is gathered ahead of the one that computes."""
        value_bytes = self.plan.value_bytes
        wait = [f"{owner} layer {layer - 2}"] if layer >= 2 else after
        if self.plan.overlap_gather:
            wait = []  # Megatron-Core gathers each bucket once the one before is there
        if size := self.expert_parameters * value_bytes:
            sent = self.message(
                "experts' parameters", "all_gather", self.plan.group("copies"), size
            )
            kind = "experts' parameters"
            wait = [self.send(f"{name} experts", stage, "data", kind, sent, wait)]
        size = self.shared_parameters * value_bytes
        sent = self.message("parameters", "all_gather", self.plan.group("shard"), size)
        return self.send(name, stage, "data", "parameters", sent, wait)

    @property
    def shared_parameters(self) -> float:
        """Parameters of a layer that all data parallel ranks have, if they do not split them."""
        model, plan = self.model, self.plan
        experts = 0.0 if plan.places_experts else model.experts * model.expert_parameters
        return (model.whole_parameters + experts) / plan.tensor

    @property
    def expert_parameters(self) -> float:
        """Parameters of a layer's experts on one GPU; 0 if all GPUs have the same experts."""
        model, plan = self.model, self.plan
        if not plan.places_experts:
            return 0.0
        return model.experts * model.expert_parameters / plan.expert / plan.expert_parts

    @property
    def layer_parameters(self) -> float:
        return self.shared_parameters + self.expert_parameters

    def ends_parameters(self, chunk: int) -> tuple[float, float]:
        """The number of embedding and of logits parameters on a GPU that has the chunk."""
        model, plan = self.model, self.plan
        each = model.vocabulary * model.hidden / plan.tensor
        is_last = chunk == self.last_chunk and not (model.tied and chunk == 0)
        return each * (chunk == 0), each * is_last

    def _reduce(self, name: str, stage: int, size_bytes: float, after: str) -> str:
        """Sums gradients; returns the name of the last task.

        HSDP scatters sums among a shard's ranks, and then sums each part over replicas, on a stream
        of its own, as PyTorch's fully_shard does over a mesh of two dimensions
        (https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
        """
        plan = self.plan
        if plan.zero == 0:
            sent = self.message("gradients", "all_reduce", plan.group("data"), size_bytes)
            return self.send(name, stage, "data", "gradients", sent, [after])
        shard, replicas = plan.group("shard"), plan.group("replicas")
        sent = self.message("gradients", "reduce_scatter", shard, size_bytes)
        done = self.send(name, stage, "data", "gradients", sent, [after])
        if replicas.ranks == 1 or (plan.sum_once and not self.is_last_batch):
            return done
        kind = "gradients of replicas"
        sent = self.message(kind, "all_reduce", replicas, size_bytes / shard.ranks)
        return self.send(f"{name} of replicas", stage, "replicas", kind, sent, [done])

    def _reduce_experts(self, name: str, stage: int, after: str) -> str:
        operation = "all_reduce" if self.plan.zero == 0 else "reduce_scatter"
        size, kind = self.expert_parameters * self.plan.gradient_bytes, "experts' gradients"
        sent = self.message(kind, operation, self.plan.group("copies"), size)
        return self.send(name, stage, "data", kind, sent, [after])

    def _send(self, name: str, stage: int, by: int, after: str) -> None:
        """Activations (by: 1), or their gradients (by: -1), go to another stage."""
        plan = self.plan
        size = self.tokens * self.model.hidden * plan.value_bytes
        size /= plan.tensor if plan.sequence else 1
        to = (stage + by) % plan.pipeline
        nodes = 1 + plan.is_away(stage, to, self.network.gpus_per_node)
        group = crossing(self.network, plan, stage, to) or plan.group("pipeline")
        sent = self.message("pipeline", "send", group, size, nodes=nodes)
        way = "send forward" if by > 0 else "send backward"
        self.send(name, stage, way, "pipeline", sent, [after], to)

    def _optimizer(self, stage: int, reduced: list[str]) -> None:
        """Adds the optimizer, which updates its part of the parameters; ZeRO then gathers them."""
        plan = self.plan
        chunks = chunks_of(plan, stage)
        layers = sum(self.layers_of(one) for one in chunks)
        shared = layers * self.shared_parameters
        shared += sum(sum(self.ends_parameters(one)) for one in chunks)
        experts = layers * self.expert_parameters
        held = [("parameters", "shard", shared), ("experts' parameters", "copies", experts)]
        mine = sum(
            count / (plan.group(group).ranks if plan.zero else 1) for _, group, count in held
        )
        ns = mine * self.computation.update_ns
        done = self.add(f"optimizer {stage}", stage, MAIN, COMPUTE, ns, reduced)
        late = plan.zero in (1, 2) and not plan.overlap_gather
        for kind, group, count in held if late else ():
            if count:
                size = count * plan.value_bytes
                sent = self.message(kind, "all_gather", plan.group(group), size)
                self.send(f"{kind} {stage}", stage, "data", kind, sent, [done])


def ns_of(sent: Estimate | None) -> float:
    return 0.0 if sent is None else sent.time_ns
