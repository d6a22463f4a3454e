"""A lab's life: built whole or not at all, changed while traffic runs, removed.

Results and exceptions are for the caller to show.
"""

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
    """One direction of a link. Packets and bytes are what left the queue, headers included."""

    packets: int
    bytes: int
    queue_drops: int  # the queue was full
    queued_bytes: int  # now
    offered_packets: int  # what came to the link's program
    losses: int  # dropped by loss, loss_every, a burst or for its length
    cut_drops: int  # dropped because the link is cut
    corrupted: int
    marked: int  # CE


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
        """A lab that some process has built."""
        features.require_rights()
        found = state.load(name)
        if not found.built:
            raise LabError(
                f"the lab {name} is half built, for its `up` was ended: weft lab down --name {name}"
            )
        return cls(found.model, name=name)

    def __enter__(self) -> Lab:
        self.up()
        return self

    def __exit__(self, *reason: object) -> None:
        if self.name in state.names():
            self.down()

    def up(self) -> None:
        """Builds the lab; whatever stops it, Ctrl-C too, leaves nothing behind."""
        features.require_rights()
        with state.lock():
            if self.name in state.names():
                raise LabModelError(
                    f"a lab named {self.name} is there: weft lab down --name {self.name}, "
                    "or give another --name"
                )
            features.require_kernel(self.model)
            for node in self.plan.nodes:
                if namespace.exists(self.plan.namespace(node)):
                    raise LabError(
                        f"the namespace {self.plan.namespace(node)} is there and no lab's: "
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
        """Removes the lab and ends what runs in it; returns how many processes that were."""
        features.require_rights()
        with state.lock():
            state.load(self.name)
            return self._remove()

    def enter(self, node: str) -> Callable[[], None]:
        """A function that moves its caller to a node; a preexec_fn for subprocess."""
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
        """The result of `work`, run in a thread on a node: a socket made there stays there."""
        return namespace.inside(self.plan.namespace(self.plan.node(node)), work)

    def address(self, host: str) -> str:
        """The IP address of a host."""
        if not self.plan.node(host).startswith("host"):
            raise LabModelError(f"{host} is a router: it has an address for every link")
        return self.plan.address(host)

    def set(self, link: str, **fields: Any) -> Link:
        """Changes a link in both directions while traffic runs; fields as in model.Link."""
        wire = self.plan.wire(link)

        def change(now: state.State) -> None:
            old = now.link(link)
            new = old.changed(**fields)
            if new.mtu_bytes != old.mtu_bytes:
                raise LabModelError("mtu_bytes stays as it was built: change the file, down and up")
            if bool(new.delay_ns) != bool(old.delay_ns):
                raise LabModelError(
                    "delay_ns comes and goes only with down and up: give the link a delay in the "
                    "file, then change it"
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
        """This share of the rate that a link was built with."""
        return int(self.model.link(self.plan.wire(link).name).rate_bytes_per_s * share)

    def cut(self, link: str, *, down: bool = False) -> None:
        """Ends a link: packets vanish in both directions and nobody is told.

        With `down` its upper end goes down instead, and the lower end sees no carrier.
        """
        wire = self.plan.wire(link)

        def change(now: state.State) -> None:
            if now.cut(link):
                raise LabModelError(f"{link} is cut: weft lab heal {link} first")
            now.changed[link] = state.Changed(now.link(link), "down" if down else "silent")
            if down:
                end = wire.ends[1]
                self._at(end.node, partial(netlink.bring_down, interface=end.interface))

        self._change(wire, change)

    def heal(self, link: str) -> None:
        """Undoes a cut; what else was set stays."""
        wire = self.plan.wire(link)

        def change(now: state.State) -> None:
            was = now.cut(link)
            if not was:
                raise LabModelError(f"{link} is not cut")
            now.changed[link] = state.Changed(now.link(link))
            if was == "down":
                self._at(wire.ends[1].node, partial(self._bring_up, wire=wire))
                self._await_carrier(now)

        self._change(wire, change)

    def current(self) -> state.State:
        """The lab as it is now: what was set, what is cut."""
        return state.load(self.name)

    def counters(self) -> dict[str, Counters]:
        """By direction: "leaf0>spine2"."""
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
        """Speaks netlink at a node."""

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
            # The filters hold the programs, and those the maps, as long as the devices are there.
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
        """Hosts leave checksums to the device, and a veth never writes one: a flipped bit would
        go unseen where every real receiver checks. With corruption they are written."""
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
                f"the programs of the lab {self.name} are gone ({error}): weft lab down, then up"
            ) from None
        value_bytes = (impair.ORDER_BYTES, impair.STATE_BYTES)[which]
        if kernel.map_info(descriptor)[1:3] != (value_bytes, self._entries):
            os.close(descriptor)
            raise LabError(f"the map of the lab {self.name} is another's: weft lab down, then up")
        return descriptor

    def _change(self, wire: Wire, change: Callable[[state.State], None]) -> state.State:
        """One change of a link: written down, then done, under the lock."""
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
        """Until every link that is not down passes packets: a veth takes a moment."""
        deadline = time.monotonic() + CARRIER_S
        for node in self.plan.nodes:
            wires = [one for one in self.plan.wires_of(node) if now.cut(one.name) != "down"]
            waited_for = [wire.end_at(node).interface for wire in wires]
            while not self._have_carrier(node, waited_for):
                if time.monotonic() > deadline:
                    raise LabError(f"the links of {node} do not come up within {CARRIER_S:g} s")
                time.sleep(STEP_S)

    def _have_carrier(self, node: str, interfaces: list[str]) -> bool:
        devices = self._at(node, netlink.devices)
        return all(devices[one].carrier for one in interfaces)

    def _remove(self) -> int:
        """Takes everything away, also what is only half there; the note of it goes last."""
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
