"""The tasks of a training step: computation and communication of one GPU of each pipeline stage.

Pipelines run one forward, one backward (1F1B), interleaved as in Narayanan et al. (SC 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from transport.estimate.activations import repeated_passes, tokens_of
from transport.estimate.collectives import Estimate, estimate
from transport.estimate.computation import BACKWARD, Computation
from transport.estimate.models import Model
from transport.estimate.networks import Network
from transport.estimate.pipelines import order
from transport.estimate.plan import Group, Plan, PlanError
from transport.estimate.schedule import COMPUTE, Task

MAIN = "main"  # the stream of computation, and of communication that computation waits for
PASSES_MAX = 200_000  # maximum number of passes of layers, forward and backward, in a step
PARTS_MAX = 16  # maximum number of parts of a layer's gradients


@dataclass(frozen=True)
class Message:
    """One kind of communication of a GPU: each operation's bytes and time. kind: its purpose."""

    kind: str
    operation: str
    group: Group
    size_bytes: float
    each: Estimate


@dataclass
class Step:
    """Builds the tasks. used: every kind of communication -> its first operation, and how often.

    known: the estimates so far. beyond: kinds with operations outside of the network's range.
    """

    model: Model
    plan: Plan
    computation: Computation
    network: Network
    tasks: list[Task] = field(default_factory=list)
    used: dict[str, tuple[Message, int]] = field(default_factory=dict)
    known: dict[tuple[str, float, int, int], Estimate] = field(default_factory=dict)
    beyond: set[str] = field(default_factory=set)

    @property
    def tokens(self) -> float:
        """Tokens of a microbatch on one GPU."""
        return tokens_of(self.model, self.plan)

    @property
    def last_chunk(self) -> int:
        return self.plan.pipeline * self.plan.interleave - 1

    def layers_of(self, chunk: int) -> int:
        """Layers of a chunk; the first chunks have one more if they cannot be equal."""
        chunks = self.last_chunk + 1
        return self.model.layers // chunks + (chunk < self.model.layers % chunks)

    def message(
        self, kind: str, operation: str, group: Group, size_bytes: float
    ) -> Estimate | None:
        """Counts an operation, and estimates it. None: the group has one rank."""
        if group.ranks < 2:
            return None
        ranks, nodes = group.ranks, group.nodes(self.network.gpus_per_node)
        if operation == "send":
            ranks, nodes = 2, min(nodes, 2)
        key = operation, size_bytes, ranks, nodes
        if key not in self.known:
            self.known[key] = estimate(self.network, operation, size_bytes, ranks, nodes=nodes)
        each = self.known[key]
        if self.network.extrapolates(operation, size_bytes, ranks):
            self.beyond.add(kind)
        found, count = self.used.get(kind, (Message(kind, operation, group, size_bytes, each), 0))
        self.used[kind] = found, count + 1
        return each

    def add(
        self, name: str, stage: int, stream: str, kind: str, ns: float, after: Sequence[str] = ()
    ) -> str:
        self.tasks.append(Task(name, stage, stream, kind, ns, tuple(after)))
        return name

    def send(
        self,
        name: str,
        stage: int,
        stream: str,
        kind: str,
        sent: Estimate | None,
        after: Sequence[str],
    ) -> str:
        """Adds a task that communicates."""
        self.tasks.append(Task(name, stage, stream, kind, ns_of(sent), tuple(after), sent))
        return name

    def build(self) -> list[Task]:
        """All tasks of the step. PlanError if there are too many."""
        passes = 2 * self.plan.microbatches * self.model.layers
        if passes > PASSES_MAX:
            raise PlanError(
                f"global_batch: {self.plan.microbatches} microbatches of {self.model.layers} "
                f"layers: at most {PASSES_MAX:,} passes of a layer are scheduled"
            )
        for stage in range(self.plan.pipeline):
            reduced: list[str] = []
            for forward, chunk, batch in order(self.plan, stage):
                if forward:
                    self._forward(stage, chunk, batch)
                else:
                    reduced += self._backward(stage, chunk, batch)
            self._optimizer(stage, reduced)
        return self.tasks

    def _forward(self, stage: int, chunk: int, batch: int) -> None:
        name = f"forward {chunk}.{batch}"
        after = [f"{name} from {chunk - 1}"] if chunk else []
        self._layers(name, stage, chunk, 1.0, after)
        if chunk == self.last_chunk:
            self.add(name, stage, MAIN, COMPUTE, self.computation.head_forward_ns)
            return
        self.add(name, stage, MAIN, COMPUTE, 0.0)
        self._send(f"forward {chunk + 1}.{batch} from {chunk}", stage, "forward", name)

    def _backward(self, stage: int, chunk: int, batch: int) -> list[str]:
        """Adds a chunk's backward pass; returns the names of the tasks that reduce gradients."""
        name = f"backward {chunk}.{batch}"
        after = [f"forward {chunk}.{batch}"]
        if chunk < self.last_chunk:
            after.append(f"{name} from {chunk + 1}")
        else:
            head_ns = self.computation.head_backward_ns
            after = [self.add(f"{name} head", stage, MAIN, COMPUTE, head_ns, after)]
        again = repeated_passes(self.model, self.plan)
        reduces = self.plan.splits_gradients or batch == self.plan.microbatches - 1
        reduced: list[str] = []
        self._layers(name, stage, chunk, BACKWARD + again, after, reduced if reduces else None)
        self.add(name, stage, MAIN, COMPUTE, 0.0)
        if chunk:
            self._send(f"backward {chunk - 1}.{batch} from {chunk}", stage, "backward", name)
        return reduced

    def _layers(
        self,
        name: str,
        stage: int,
        chunk: int,
        passes: float,
        after: list[str],
        reduced: list[str] | None = None,
    ) -> None:
        """The layers of a chunk, one after the other on the stage's main stream.

        passes: computation of a layer, counted in forward passes. reduced: receives the names of
        the tasks that reduce gradients; None: this pass does not reduce them.
        """
        count = self.layers_of(chunk)
        sums = 4 if passes >= BACKWARD and self.plan.recompute else 2
        self._gather_ends(name, stage, chunk, passes, after)
        gathered: list[str] = []
        # The gradients of the logits' parameters are ready before those of any layer.
        bucket_bytes, buckets = self.ends_parameters(chunk)[1] * self.plan.gradient_bytes, 0
        for layer in range(count):
            wait = list(after) if layer == 0 else []
            if self.plan.zero == 3:
                self._gather_ahead(name, stage, min(layer + 2, count), after, gathered)
                wait.append(gathered[layer])
                if reduced is not None and layer >= 2:
                    # PyTorch's FSDP waits until the buffer of gradients is free again.
                    wait.append(f"{name} gradients {layer - 2}")
            whole = f"{name} layer {layer}"
            made = self.shared_parameters * self.plan.gradient_bytes
            parts = 1 if reduced is None else self._parts_of(made)
            for part in range(parts):
                one = whole if part == parts - 1 else f"{whole} part {part}"
                ns = self._layer_ns(chunk, layer, passes, reduced is not None) / parts
                self.add(one, stage, MAIN, COMPUTE, ns, wait if part == 0 else [])
                if reduced is None:
                    continue
                bucket_bytes += made / parts
                ends = layer == count - 1 and part == parts - 1
                if ends:
                    bucket_bytes += self.ends_parameters(chunk)[0] * self.plan.gradient_bytes
                full = self.plan.zero != 3 and bucket_bytes >= self.plan.bucket_bytes
                if full or ends or (self.plan.zero == 3 and part == parts - 1):
                    reduced.append(
                        self._reduce(f"{name} gradients {buckets}", stage, bucket_bytes, one)
                    )
                    bucket_bytes, buckets = 0.0, buckets + 1
            if reduced is not None and self.expert_parameters:
                reduced.append(self._reduce_experts(f"{name} experts {layer}", stage, whole))
            self._between_parts(whole, stage, sums, passes)

    def _layer_ns(self, chunk: int, layer: int, passes: float, reduces: bool) -> float:
        """A layer's time, with the embedding's before the first, and after the last in backward.

        FSDP copies a layer's parameters out of the buffer that they were gathered in, and both it
        and DDP copy gradients into the buffer that is reduced.
        """
        computed, plan = self.computation, self.plan
        ns = computed.layer_ns(passes)
        if plan.replicas > 1:
            copied = plan.value_bytes * (plan.zero == 3) + plan.gradient_bytes * reduces
            ns += copied * self.layer_parameters * computed.copy_ns
        if chunk == 0 and passes < BACKWARD and layer == 0:
            ns += computed.embedding_forward_ns
        if chunk == 0 and passes >= BACKWARD and layer == self.layers_of(0) - 1:
            ns += computed.embedding_backward_ns
        return ns

    def _parts_of(self, gradient_bytes: float) -> int:
        """Parts in which a layer's gradients become ready: buckets may be smaller than a layer."""
        if self.plan.zero == 3:
            return 1
        return min(max(round(gradient_bytes / self.plan.bucket_bytes), 1), PARTS_MAX)

    def _gather_ends(
        self, name: str, stage: int, chunk: int, passes: float, after: list[str]
    ) -> None:
        """FSDP: gathers the parameters of the embedding and of the logits, once a step."""
        count = sum(self.ends_parameters(chunk))
        if self.plan.zero == 3 and passes < BACKWARD and count:
            sent = self.message(
                "embeddings", "all_gather", self.plan.group("shard"), count * self.plan.value_bytes
            )
            self.send(f"{name} embeddings", stage, "data", "embeddings", sent, after)

    def _between_parts(self, layer: str, stage: int, sums: int, passes: float) -> None:
        """Adds the communication between parts of a layer that the next layer waits for."""
        values = self.tokens * self.model.hidden * self.plan.value_bytes
        plan, model = self.plan, self.model
        ns = sum(
            ns_of(self.message("tensor", "all_reduce", plan.group("tensor"), values))
            for _ in range(sums)
        )
        if ns:
            self.add(f"{layer} tensor", stage, MAIN, "tensor", ns)
        if model.experts > 1:
            routed = values * model.active
            ns = sum(
                ns_of(self.message("expert", "all_to_all", plan.group("expert"), routed))
                for _ in range(sums)
            )
            if ns:
                self.add(f"{layer} experts", stage, MAIN, "expert", ns)
        if plan.context > 1:
            # Keys and values go around the ring while attention computes; counted here as exposed.
            kv = 2 * self.tokens * (model.kv_heads or model.heads) * model.head_size
            size = kv * plan.value_bytes / plan.tensor
            sent = self.message("context", "send", plan.group("context"), size)
            ns = (plan.context - 1) * passes * ns_of(sent)
            self.add(f"{layer} context", stage, MAIN, "context", ns)

    def _gather_ahead(
        self, name: str, stage: int, end: int, after: list[str], gathered: list[str]
    ) -> None:
        """FSDP: gathers the layers before `end` that are not yet `gathered`.

        The next layer is gathered before the current layer computes, and so before the current
        layer's gradients are scattered: a communicator runs operations in the order of their calls.
        """
        for layer in range(len(gathered), end):
            each = f"{name} parameters {layer}"
            gathered.append(self._gather(each, stage, name, layer, after))

    def _gather(self, name: str, stage: int, owner: str, layer: int, after: list[str]) -> str:
        """FSDP: the parameters of a layer. One layer is gathered ahead of the one that computes."""
        value_bytes = self.plan.value_bytes
        wait = [f"{owner} layer {layer - 2}"] if layer >= 2 else after
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
        experts = model.experts * model.expert_parameters if plan.expert == 1 else 0.0
        return (model.attention_parameters + experts) / plan.tensor

    @property
    def expert_parameters(self) -> float:
        """Parameters of a layer's experts on one GPU; 0 if all GPUs have the same experts."""
        model, plan = self.model, self.plan
        if plan.expert == 1:
            return 0.0
        return model.experts * model.expert_parameters / plan.expert / plan.tensor

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
        if replicas.ranks == 1:
            return done
        kind = "gradients of replicas"
        sent = self.message(kind, "all_reduce", replicas, size_bytes / shard.ranks)
        return self.send(f"{name} of replicas", stage, "replicas", kind, sent, [done])

    def _reduce_experts(self, name: str, stage: int, after: str) -> str:
        operation = "all_reduce" if self.plan.zero == 0 else "reduce_scatter"
        size, kind = self.expert_parameters * self.plan.gradient_bytes, "experts' gradients"
        sent = self.message(kind, operation, self.plan.group("copies"), size)
        return self.send(name, stage, "data", kind, sent, [after])

    def _send(self, name: str, stage: int, way: str, after: str) -> None:
        """Activations, or their gradients, go to the next stage."""
        size = self.tokens * self.model.hidden * self.plan.value_bytes
        size /= self.plan.tensor if self.plan.sequence else 1
        sent = self.message("pipeline", "send", self.plan.group("pipeline"), size)
        self.send(name, stage, f"send {way}", "pipeline", sent, [after])

    def _optimizer(self, stage: int, reduced: list[str]) -> None:
        """Adds the optimizer, which updates its part of the parameters; ZeRO then gathers them."""
        plan = self.plan
        chunks = range(stage, self.last_chunk + 1, plan.pipeline)
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
        for kind, group, count in held if plan.zero in (1, 2) else ():
            if count:
                size = count * plan.value_bytes
                sent = self.message(kind, "all_gather", plan.group(group), size)
                self.send(f"{kind} {stage}", stage, "data", kind, sent, [done])


def ns_of(sent: Estimate | None) -> float:
    return 0.0 if sent is None else sent.time_ns
