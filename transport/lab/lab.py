"""Builds a lab, changes its links while traffic runs, and removes it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from transport.lab import features, impair, kernel, namespace, netlink, state
from transport.lab.model import LabError, LabModel, LabModelError, Link
from transport.lab.plan import Direction, Plan, Wire

T = TypeVar("T")

CARRIER_S, STEP_S = 10.0, 0.005


@dataclass(frozen=True)
class Counters:
    """Counters of one direction of a link. `packets` and `bytes` left the queue, with headers."""

    packets: int
    bytes: int
    queue_drops: int  # packets dropped because the queue was full
    queued_bytes: int  # bytes in the queue now
    offered_packets: int  # packets that reached the link's eBPF program
    losses: int  # packets dropped by `loss`, `loss_every`, a loss burst, or for their length
    cut_drops: int  # packets dropped because the link is cut
    corrupted: int
    marked: int  # packets marked CE (ECN)


class Lab:
    """A network of namespaces on this host. `with Lab(model) as lab:` builds and removes it."""

    def __init__(self, model: LabModel | None = None, *, name: str | None = None) -> None:
        model = model or LabModel()
        self.model = replace(model, name=name) if name is not None else model
        self.name = self.model.name
        self.plan = Plan(self.model, self.name)
        for link in self.model.link_names():
            netlink.check_rate(link, self.model.link(link))
        self._descriptors: dict[str, int] = {}
        self._children: list[subprocess.Popen[Any]] = []

    @classmethod
    def attach(cls, name: str) -> Lab:
        """Opens a lab that any process has built."""
        features.require_rights()
        found = state.load(name)
        if not found.built:
            raise LabError(
                f"the lab {name} is half built: wait for weft lab up to end, or remove the lab: "
                f"weft lab down --name {name}"
            )
        return cls(found.model, name=name)

    def __enter__(self) -> Lab:
        self.up()
        return self

    def __exit__(self, *reason: object) -> None:
        if self.name in state.names():
            self.down()

    def up(self) -> None:
        """Builds the lab; removes everything again on an error or Ctrl-C."""
        features.require_rights()
        with state.lock():
            if self.name in state.names():
                raise LabModelError(
                    f"a lab named {self.name} exists: weft lab down --name {self.name}, "
                    "or give another --name"
                )
            features.require_kernel(self.model)
            for node in self.plan.nodes:
                if namespace.exists(self.plan.namespace(node)):
                    raise LabError(
                        f"the namespace {self.plan.namespace(node)} exists and belongs to no lab: "
                        "remove it (ip netns del), or give another --name"
                    )
            try:
                self._build()
            except BaseException as error:
                self._remove()
                if isinstance(error, LabError) or not isinstance(error, Exception):
                    raise
                raise LabError(f"the lab {self.name} cannot be built: {error}") from error

    def down(self) -> int:
        """Removes the lab and ends the processes in it; returns their number."""
        features.require_rights()
        with state.lock():
            state.load(self.name)
            return self._remove()

    def enter(self, node: str) -> Callable[[], None]:
        """A function that moves its caller into a node's namespace, such as a preexec_fn."""
        name = self.plan.namespace(self.plan.node(node))
        if node not in self._descriptors:
            self._descriptors[node] = namespace.open_namespace(name)
        descriptor = self._descriptors[node]
        return lambda: kernel.enter_namespace(descriptor)

    def popen(self, node: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a process on a node, as subprocess.Popen does; down() ends it."""
        child = subprocess.Popen(argv, preexec_fn=self.enter(node), **options)
        self._children.append(child)
        return child

    def run(
        self, node: str, argv: Sequence[str], **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Runs a process on a node to its end, as subprocess.run does."""
        return subprocess.run(argv, preexec_fn=self.enter(node), check=False, **options)

    def call(self, node: str, work: Callable[[], T]) -> T:
        """Runs `work` in a thread on a node; sockets created there stay in the node's namespace."""
        return namespace.inside(self.plan.namespace(self.plan.node(node)), work)

    def address(self, host: str) -> str:
        """The IP address of a host."""
        if not self.plan.node(host).startswith("host"):
            raise LabModelError(f"{host} is a router with an address per link: name a host")
        return self.plan.address(host)

    def set(self, link: str, **fields: Any) -> Link:
        """Changes a link in both directions while traffic runs; fields are those of model.Link."""
        wire = self.plan.wire(link)

        def change(now: state.State) -> None:
            old = now.link(link)
            new = old.changed(**fields)
            if new.mtu_bytes != old.mtu_bytes:
                raise LabModelError(
                    "mtu_bytes cannot change in a lab: edit the lab file, then weft lab down and up"
                )
            if bool(new.delay_ns) != bool(old.delay_ns):
                raise LabModelError(
                    "delay_ns cannot change from or to 0: give the link a delay in the lab file, "
                    "then weft lab down and up"
                )
            netlink.check_rate(link, new)
            self.model.check_offload(link, new)
            now.changed[link] = state.Changed(new, now.cut(link))
            self._use_checksums(now)
            for direction in self.plan.directions_of(wire):
                end = direction.source
                shape = partial(netlink.shape, interface=end.interface, spec=new, command="change")
                self._at(end.node, shape)

        return self._change(wire, change).link(link)

    def degraded_rate(self, link: str, share: float) -> int:
        """The given fraction of the rate that the link was built with."""
        return int(self.model.link(self.plan.wire(link).name).rate_bytes_per_s * share)

    def cut(self, link: str, *, down: bool = False) -> None:
        """Cuts a link: packets are dropped in both directions without any notice.

        With `down`, its end in the higher tier is set down instead; the other end sees no carrier.
        """
        wire = self.plan.wire(link)

        def change(now: state.State) -> None:
            if now.cut(link):
                raise LabModelError(f"{link} is cut already: weft lab heal {link} first")
            now.changed[link] = state.Changed(now.link(link), "down" if down else "silent")
            if down:
                end = wire.ends[1]
                self._at(end.node, partial(netlink.bring_down, interface=end.interface))

        self._change(wire, change)

    def heal(self, link: str) -> None:
        """Undoes a cut; changes made by `set` stay."""
        wire = self.plan.wire(link)

        def change(now: state.State) -> None:
            was = now.cut(link)
            if not was:
                raise LabModelError(f"{link} is not cut: there is nothing to heal")
            now.changed[link] = state.Changed(now.link(link))
            if was == "down":
                self._at(wire.ends[1].node, partial(self._bring_up, wire=wire))
                self._await_carrier(now)

        self._change(wire, change)

    def current(self) -> state.State:
        """The current state: the changes made by `set`, and the cuts."""
        return state.load(self.name)

    def counters(self) -> dict[str, Counters]:
        """Counters by direction, such as "leaf0>spine2"."""
        now = self.current()
        devices = {node: self._at(node, netlink.devices) for node in self.plan.nodes}
        descriptor = self._open_map(now, 1)
        try:
            entries = [
                kernel.read_map(descriptor, one.index, impair.STATE_BYTES)
                for one in self.plan.directions
            ]
        finally:
            os.close(descriptor)
        found = {}
        for direction, entry in zip(self.plan.directions, entries, strict=True):
            device = devices[direction.source.node][direction.source.interface]
            seen = impair.seen(entry)
            found[direction.name] = Counters(
                packets=device.packets,
                bytes=device.bytes,
                queue_drops=device.queue_drops,
                queued_bytes=device.queued_bytes,
                offered_packets=seen.packets,
                losses=seen.losses,
                cut_drops=seen.cut_drops,
                corrupted=seen.corrupted,
                marked=seen.marked,
            )
        return found

    def _at(self, node: str, work: Callable[[Any], T]) -> T:
        """Calls `work` with a netlink socket of a node's namespace."""

        def body() -> T:
            with netlink.speaking() as link, netlink.refusals_at(node):
                return work(link)

        return namespace.inside(self.plan.namespace(node), body)

    def _build(self) -> None:
        now = state.State(self.name, self.model)
        state.save(now)
        for node in self.plan.nodes:
            namespace.make(self.plan.namespace(node))
        for node in self.plan.nodes:
            wires = [wire for wire in self.plan.wires if wire.ends[0].node == node]
            self._at(node, partial(self._add_wires, wires=wires))
        held = [
            kernel.create_array("weft_orders", impair.ORDER_BYTES, self._entries),
            kernel.create_array("weft_state", impair.STATE_BYTES, self._entries),
        ]
        try:
            now.maps = (kernel.map_info(held[0])[0], kernel.map_info(held[1])[0])
            programs = {}
            for direction in self.plan.directions:
                self._order(held[0], direction, now)
                code = impair.program(orders_map=held[0], state_map=held[1], index=direction.index)
                held.append(kernel.load_classifier("weft", code))
                programs[direction.index] = held[-1]
            for node in self.plan.nodes:
                build = partial(
                    netlink.build_node,
                    plan=self.plan,
                    node=node,
                    programs=programs,
                    links=now.link,
                )
                self._at(node, build)
        finally:
            # Close the descriptors: filters on the devices keep the programs and maps alive.
            netlink.close_all(held)
        self._use_checksums(now)
        self._await_carrier(now)
        now.built = True
        state.save(now)

    @property
    def _entries(self) -> int:
        return len(self.plan.directions)

    def _add_wires(self, link: Any, wires: list[Wire]) -> None:
        for wire in wires:
            near, far = wire.ends
            descriptor = namespace.open_namespace(self.plan.namespace(far.node))
            try:
                netlink.add_veth(link, near, far, descriptor)
            finally:
                os.close(descriptor)

    def _bring_up(self, link: Any, wire: Wire) -> None:
        near, far = wire.ends[1], wire.ends[0]
        netlink.set_up_end(link, near, far, self.model.link(wire.name).mtu_bytes)
        for route in self.plan.routes_of(near.node):
            if far.address in route.gateways:
                netlink.add_route(link, route)

    def _use_checksums(self, now: state.State) -> None:
        """Turns off checksum offload if links corrupt packets, so that receivers see flipped bits.

        With offload, a veth device never computes the checksum, and its peer does not check it.
        """
        corrupting = any(now.link(name).corruption for name in self.model.link_names())
        if corrupting and not now.checksums:
            for node in self.plan.nodes:
                if node.startswith("host"):
                    near = self.plan.wires_of(node)[0].end_at(node)
                    turn_off = partial(netlink.turn_off, near.interface, (netlink.CHECKSUM,))
                    namespace.inside(self.plan.namespace(node), turn_off)
            now.checksums = True

    def _order(self, descriptor: int, direction: Direction, now: state.State) -> None:
        wire = direction.wire.name
        entry = impair.orders(
            now.link(wire),
            cut=now.cut(wire) == "silent",
            marks=not direction.from_host,
            up=direction.source == direction.wire.ends[0],
        )
        kernel.write_map(descriptor, direction.index, entry)

    def _open_map(self, now: state.State, which: int) -> int:
        try:
            descriptor = kernel.open_map(now.maps[which])
        except OSError as error:
            raise LabError(
                f"the eBPF programs of the lab {self.name} are gone ({error}): weft lab down, "
                "then up"
            ) from None
        value_bytes = (impair.ORDER_BYTES, impair.STATE_BYTES)[which]
        if kernel.map_info(descriptor)[1:3] != (value_bytes, self._entries):
            os.close(descriptor)
            raise LabError(
                f"the eBPF map of the lab {self.name} has another size: weft lab down, then up"
            )
        return descriptor

    def _change(self, wire: Wire, change: Callable[[state.State], None]) -> state.State:
        """Applies a change to a link and saves the state, under the lock."""
        features.require_rights()
        with state.lock():
            now = state.load(self.name)
            descriptor = self._open_map(now, 0)
            try:
                change(now)
                for direction in self.plan.directions_of(wire):
                    self._order(descriptor, direction, now)
            finally:
                os.close(descriptor)
            state.save(now)
            return now

    def _await_carrier(self, now: state.State) -> None:
        """Waits until every link that is not down has a carrier, which takes a veth a moment."""
        deadline = time.monotonic() + CARRIER_S
        for node in self.plan.nodes:
            wires = [one for one in self.plan.wires_of(node) if now.cut(one.name) != "down"]
            waited_for = [wire.end_at(node).interface for wire in wires]
            while not self._have_carrier(node, waited_for):
                if time.monotonic() > deadline:
                    raise LabError(f"the links of {node} did not come up within {CARRIER_S:g} s")
                time.sleep(STEP_S)

    def _have_carrier(self, node: str, interfaces: list[str]) -> bool:
        devices = self._at(node, netlink.devices)
        return all(devices[one].carrier for one in interfaces)

    def _remove(self) -> int:
        """Removes everything, even if half built; the state file is removed last."""
        spaces = [self.plan.namespace(node) for node in self.plan.nodes]
        ended = namespace.end_processes(spaces)
        for child in self._children:
            if child.poll() is None:
                child.wait(timeout=namespace.KILL_S)
        self._children.clear()
        netlink.close_all(list(self._descriptors.values()))
        self._descriptors.clear()
        for name in spaces:
            namespace.remove(name)
        state.forget(self.name)
        return ended
