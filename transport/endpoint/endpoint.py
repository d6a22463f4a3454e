"""Endpoints: open the engines, listen and connect."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from transport import native
from transport.endpoint.buffers import Buffer, DeviceArray
from transport.endpoint.closing import AsyncCloses
from transport.endpoint.connection import Connection
from transport.endpoint.device import reduce_arrays
from transport.endpoint.handle import place_of
from transport.endpoint.knobs import KnobError, KnobValue, text_of
from transport.endpoint.memory import Memory, part_of
from transport.endpoint.reactor import Reactor
from transport.endpoint.timeouts import deadline, patience
from transport.errors import (
    OK,
    WOULD_BLOCK,
    ConnectionClosedError,
    InvalidArgumentError,
    TimedOutError,
    WeftError,
    error_for,
)
from transport.policies.choice import (
    Parameter,
    PolicyName,
    PolicyState,
    params_text,
    policy_text,
    resolve_settings,
    set_text,
    state_of,
)
from transport.policies.recording import BYTES_MAX as RECORDING_BYTES_MAX, LiveRecording

HANDLE_BYTES = 80
OLD_HANDLE_BYTES = 64  # size of handles without a key, which weft 0.1 made
# Longest wait in native code; after each, a blocking call checks for signals and for close().
SLICE_S = 0.05
# An accept() that times out also reports a peer that failed to connect up to this long before it.
TROUBLE_S = 1.0

Child = TypeVar("Child", "Connection", "Listener", "Memory")
Policies = Mapping[str, PolicyName]  # family ("window", "path", "loss", "credit") -> policy

_open_endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()


def _no_answer(name: str, timeout_s: float | None, dial: native.Dial) -> WeftError:
    """The error for a connect that timed out: its cause if known, else TimedOutError."""
    cause, known = dial.cause(), dial.error()
    if cause not in (OK, WOULD_BLOCK) and known:
        return error_for(cause, f"cannot connect to {name} within {timeout_s} s", known)
    why = f": {known}" if known else ""
    return TimedOutError(f"connect to {name}: no answer within {timeout_s} s{why}")


def _wait_until(
    finished: Callable[[], bool], wait: Callable[[int], None], until: float | None
) -> bool:
    """Calls wait(timeout_ns) until finished() is true; False if `until` passes first."""
    while not finished():
        left_s = SLICE_S if until is None else min(until - time.monotonic(), SLICE_S)
        if left_s <= 0:
            return False
        wait(int(left_s * 1e9))
    return True


class Listener(AsyncCloses):
    """Accepts peers that connect to its handle, which the application sends to them by any means.

    An open listener also accepts peers that connect to its host and port.
    """

    def __init__(self, endpoint: Endpoint, listener: native.Listener) -> None:
        self._endpoint = endpoint
        self._native: native.Listener | None = listener
        self._port = listener.port()
        self._handle = listener.handle()

    @property
    def handle(self) -> bytes:
        """The 80 bytes for a peer's Endpoint.connect(): address, port and key.

        Whoever can read them may connect: pass them on as you would pass on a password.
        """
        return self._handle

    @property
    def port(self) -> int:
        """The TCP port on which the listener listens.

        Only an open listener accepts peers that connect to it without the handle.
        """
        return self._port

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._native is None

    def accept(self, *, timeout_s: float | None = None) -> Connection:
        """Waits for the next peer. TimedOutError after `timeout_s` seconds (None: no limit).

        OutOfDescriptorsError if peers connected and this process had no descriptors for them.
        """
        made: list[Connection] = []
        if not _wait_until(lambda: self._took(made), self._wait, deadline(timeout_s)):
            raise self._nobody(timeout_s)
        return made[0]

    async def aaccept(self, *, timeout_s: float | None = None) -> Connection:
        """Like accept(), as a coroutine."""
        seconds = patience(timeout_s)
        made: list[Connection] = []
        try:
            async with asyncio.timeout(seconds):
                await self._endpoint._reactor.until(lambda: self._took(made))
        except TimeoutError as error:
            if isinstance(error, WeftError):
                raise
            raise self._nobody(timeout_s) from None
        return made[0]

    def __iter__(self) -> Iterator[Connection]:
        """Yields the connection of each new peer until the listener is closed."""
        while not self.closed:
            try:
                yield self.accept()
            except ConnectionClosedError:
                return

    async def __aiter__(self) -> AsyncIterator[Connection]:
        while not self.closed:
            try:
                yield await self.aaccept()
            except ConnectionClosedError:
                return

    def close(self) -> None:
        """Stops accepting; accepted connections stay open. May be called more than once."""
        closing, self._native = self._native, None
        if closing is not None:
            closing.close()  # at once, even if another thread waits in accept()
        self._endpoint._reactor.poke()

    def __repr__(self) -> str:
        return f"<Listener port {self._port}{' closed' if self.closed else ''}>"

    def _nobody(self, timeout_s: float | None) -> WeftError:
        """The error for an accept that timed out: why a peer failed to connect, if one did."""
        said = f"accept on port {self._port}: no peer within {timeout_s} s"
        listener = self._native
        if listener is not None and timeout_s is not None:
            status, why = listener.trouble(int((timeout_s + TROUBLE_S) * 1e9))
            if status != OK:
                return error_for(status, said, why)
            if why:
                said += f"; the last peer that was refused: {why}"
        return TimedOutError(said)

    def _wait(self, timeout_ns: int) -> None:
        listener = self._native
        if listener is not None:
            listener.wait(timeout_ns)

    def _took(self, made: list[Connection]) -> bool:
        if made:
            return True
        listener = self._native
        if listener is None:
            raise ConnectionClosedError(f"the listener on port {self._port} is closed")
        status, connection = listener.accept()
        if status == WOULD_BLOCK:
            return False
        if status != OK or connection is None:
            raise error_for(status, f"accept on port {self._port}")
        made.append(self._endpoint._adopt(connection))
        return True


class Endpoint(AsyncCloses):
    """The engines of this process, with their listeners and connections.

    Keyword arguments are knobs by field name (`weft knobs` lists them) and override the
    environment. A knob with keys takes its text or a mapping, as in fault={"loss": 0.01}; keys
    that are not given keep the environment's values. KnobError if a knob does not exist or its
    value is not allowed. An endpoint owns threads: use it in a `with`, or close it.
    """

    def __init__(self, **knobs: KnobValue) -> None:
        given = {name: text_of(value) for name, value in knobs.items()}
        # Engines load compiled libraries: compile policies given as files or by other packages.
        settings = resolve_settings(os.environ, given)
        status, text, knobs_fit, runtime = native.open_runtime(list(settings.items()))
        if not knobs_fit:
            raise KnobError(text)
        if status != OK or runtime is None:
            raise error_for(status, "cannot open an endpoint", text)
        self._native: native.Runtime | None = runtime
        self._pid = os.getpid()
        self._devices = tuple(runtime.devices())
        self._summary = runtime.summary()
        self._reactor = Reactor(runtime.event_descriptor)
        self._children: weakref.WeakSet[Connection | Listener | Memory] = weakref.WeakSet()
        self._dials: weakref.WeakSet[native.Dial] = weakref.WeakSet()
        # Guards _children and _dials, which do not grow once close() began.
        self._gate = threading.RLock()
        self._closer = threading.RLock()  # held while a thread closes the endpoint
        self._closing = False
        _open_endpoints.add(self)

    @property
    def devices(self) -> tuple[native.Device, ...]:
        """The NICs in use; an argument `device=` may be an index into this tuple."""
        return self._devices

    def listen(
        self,
        port: int = 0,
        *,
        open: bool = False,  # noqa: A002 - the usual word for it
        device: int | str = 0,
        policies: Policies | None = None,
    ) -> Listener:
        """Listens on a TCP port of a device (0: the knob control_port, or any free port).

        Only peers that have the listener's handle are accepted, unless it is `open`: then anybody
        who reaches the port is, or with WEFT_SECRET_FILE, anybody who has the secret. `device` is
        an index into `devices` or a name. `policies` replaces the endpoint's policies for
        connections accepted here, as in {"window": "dctcp"}. AddressError if the port is taken.
        """
        number = self._port(port)
        chosen = set_text(policies)
        status, text, listener = self._runtime.listen(self._device(device), number, chosen, open)
        if status != OK or listener is None:
            what, dash, detail = text.partition(": ")  # native: cannot listen on ADDRESS: reason
            if not (dash and what.startswith("cannot listen")):
                what, detail = f"cannot listen on port {port}" if number else "cannot listen", text
            raise error_for(status, what, detail)
        return self._own(Listener(self, listener))

    def connect(
        self,
        host_or_handle: str | bytes,
        port: int | None = None,
        *,
        timeout_s: float | None = 10,
        device: int | str = 0,
        policies: Policies | None = None,
    ) -> Connection:
        """Connects to a listener's handle, or to the host and port of an open listener.

        `policies` replaces the endpoint's policies for this connection, as in
        {"window": "dctcp"}; a connection with its own path policy also gets its own paths.

        RefusedError if no process listens there, AuthenticationError and VersionMismatchError if
        the peer refuses, TimedOutError after `timeout_s` seconds (None: no limit).
        """
        until = deadline(timeout_s)
        name, dial = self._dial(host_or_handle, port, device, policies)
        made: list[Connection] = []
        if not _wait_until(lambda: self._reached(name, dial, made), dial.wait, until):
            raise _no_answer(name, timeout_s, dial)
        return made[0]

    async def aconnect(
        self,
        host_or_handle: str | bytes,
        port: int | None = None,
        *,
        timeout_s: float | None = 10,
        device: int | str = 0,
        policies: Policies | None = None,
    ) -> Connection:
        """Like connect(), as a coroutine: `connection = await endpoint.aconnect(handle)`."""
        seconds = patience(timeout_s)
        name, dial = self._dial(host_or_handle, port, device, policies)
        made: list[Connection] = []
        try:
            async with asyncio.timeout(seconds):
                await self._reactor.until(lambda: self._reached(name, dial, made))
        except TimeoutError as error:
            if isinstance(error, WeftError):
                raise
            raise _no_answer(name, timeout_s, dial) from None
        return made[0]

    def set_policy(self, family: str, policy: PolicyName, **params: Parameter) -> None:
        """Replaces a policy at once, for every connection that uses the endpoint's policies.

        `family` is "window", "path", "loss" or "credit". `policy` is a registered name, a .py or
        .so file, or a declared policy; a .py file is compiled first. Nothing in flight is lost.
        Connections opened from then on use the network, also to processes of this host. Those
        whose messages pass through shared memory already (WEFT_LOCAL) are not changed.
        """
        text = policy_text(family, policy, params)
        status, error = self._runtime.change_policy(family, text, False)
        if status != OK:
            raise error_for(status, f"set_policy {family}", error)
        self._summary = self._runtime.summary()

    def set_params(self, family: str, **params: Parameter) -> None:
        """Changes parameters of the current policy; its state is kept.

        Connections whose policy failed and was replaced by `fixed` are not changed. As with
        set_policy(), connections opened from then on use the network.
        """
        status, error = self._runtime.change_policy(family, params_text(params), True)
        if status != OK:
            raise error_for(status, f"set_params {family}", error)
        self._summary = self._runtime.summary()

    def register(self, buf: Buffer) -> Memory:
        """Registers a writable buffer, in host or GPU memory, that is sent or received often.

        A NIC accesses GPU memory directly if it can; otherwise the bytes pass through host memory.

        Pass the result to isend() and irecv_into() along with parts of the buffer. The buffer is
        kept alive until the Memory is closed. Registering a buffer again is cheap.
        """
        if isinstance(buf, list | tuple):
            raise TypeError("buf: needs one buffer, not a list")
        made = Memory(self._runtime.register_memory(part_of(self._runtime, buf, True).buffer))
        return self._own(made)

    def reduce(
        self,
        a: DeviceArray,
        b: DeviceArray,
        out: DeviceArray,
        *,
        operation: str = "sum",
        also: DeviceArray | None = None,
        stream: object = None,
    ) -> None:
        """Computes `out` = `a` + `b` (or min, max) on a GPU; `also` gets a copy in the same pass.

        A step of a ring all-reduce needs the sum in place and a copy to send on. The arrays have
        the same length, type (f32, f16, bf16, f64, i32, i64, u8) and GPU; `out` and `also` may be
        `a` or `b`. f16 and bf16 are added in f32 and rounded once. The kernel is queued on
        `stream` (None: the default stream, after the work on the arrays' own streams): keep the
        arrays until it has run. DeviceMissingError if weft was built without kernels.
        """
        arrays: dict[str, object] = {"a": a, "b": b, "out": out}
        if also is not None:
            arrays["also"] = also
        reduce_arrays(self._runtime, arrays, operation, stream)

    @property
    def connections(self) -> list[Connection]:
        """The open connections, in no particular order."""
        with self._guarded():
            children = list(self._children)
        return [one for one in children if isinstance(one, Connection) and not one.closed]

    @property
    def policies(self) -> dict[str, PolicyState]:
        """The endpoint's policies by family, used by connections without their own."""
        return {info.family: state_of(info) for info in self._runtime.policies()}

    def record(
        self, path: str | os.PathLike[str], *, bytes_max: int = RECORDING_BYTES_MAX
    ) -> LiveRecording:
        """Records every decision of every policy in a file until stopped; use it in a `with`.

        '%p' in the path becomes the process id. The recording ends before it would have more than
        `bytes_max` bytes. `weft policy replay` reads the file. Connections opened from then on use
        the network, as after set_policy().
        """
        recording = LiveRecording(self._runtime, os.fspath(path), bytes_max)
        self._summary = self._runtime.summary()
        return recording

    def counters(self) -> native.EndpointCounters:
        """The counters of all engines together: traffic, refusals, injected faults."""
        return self._runtime.counters()

    @property
    def telemetry_page(self) -> Path | None:
        """The file with the endpoint's live counters; None if WEFT_TELEMETRY is off."""
        path = self._runtime.telemetry_page()
        return Path(path) if path else None

    def summary(self) -> str:
        """One line for a log: datapath, engines, devices, paths, segment, policies."""
        return self._summary

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._native is None

    def close(self) -> None:
        """Closes all connections and listeners and stops the engines; may be called again.

        If another thread is closing the endpoint, this returns once the engines have stopped.
        """
        with self._unless_forked(self._closer):
            self._close()

    def _close(self) -> None:
        if self._native is None:
            return
        with self._guarded():
            self._closing = True
            children, dials = list(self._children), list(self._dials)
        for child in children:
            child.close()
        for dial in dials:
            dial.close()  # ends connect() in other threads
        self._reactor.poke()
        self._reactor.close()
        closing, self._native = self._native, None
        if closing is not None:
            closing.close()
        _open_endpoints.discard(self)

    def __repr__(self) -> str:
        return "<Endpoint closed>" if self.closed else f"<Endpoint {self._summary}>"

    @property
    def _runtime(self) -> native.Runtime:
        if self._native is None:
            raise ConnectionClosedError("the endpoint is closed")
        return self._native

    @staticmethod
    def _port(port: int) -> int:
        if not 0 <= port <= 65535:
            raise InvalidArgumentError(f"port: must be 0 to 65535, not {port}")
        return port

    def _device(self, device: int | str) -> int:
        names = [one.name for one in self._devices]
        if isinstance(device, str) and device in names:
            return names.index(device)
        if isinstance(device, int) and 0 <= device < len(names):
            return device
        listing = ", ".join(f"{i} {name}" for i, name in enumerate(names))
        raise InvalidArgumentError(f"device: there is no {device!r}: choose one of {listing}")

    def _dial(
        self,
        target: str | bytes,
        port: int | None,
        device: int | str,
        policies: Policies | None = None,
    ) -> tuple[str, native.Dial]:
        index = self._device(device)
        chosen = set_text(policies)
        if isinstance(target, str):
            if port is None:
                raise InvalidArgumentError(f"port: give one to connect to the host {target}")
            name = f"{target} port {port}"
            status, text, dial = self._runtime.connect_address(
                index, target, self._port(port), chosen
            )
        else:
            if len(target) not in (HANDLE_BYTES, OLD_HANDLE_BYTES):
                text = f"needs a host, or the {HANDLE_BYTES} bytes of a listener's handle"
                raise InvalidArgumentError(f"host_or_handle: {text}")
            name = place_of(bytes(target))
            status, text, dial = self._runtime.connect_handle(index, bytes(target), chosen)
        if status != OK or dial is None:
            raise error_for(status, f"cannot connect to {name}", text)
        with self._guarded():
            if not self._closing:
                self._dials.add(dial)
                return name, dial
        dial.close()
        raise ConnectionClosedError("the endpoint is closed")

    def _reached(self, name: str, dial: native.Dial, made: list[Connection]) -> bool:
        if made:
            return True
        if self.closed or self._closing:
            raise ConnectionClosedError("the endpoint is closed")
        status, connection = dial.poll()
        if status == WOULD_BLOCK:
            return False
        if status != OK or connection is None:
            why = dial.error().removeprefix(f"{name}: ")
            if why.startswith(f"{name} "):  # as in "host port 7000 refused: reason"
                why = f"it {why.removeprefix(f'{name} ')}"
            raise error_for(status, f"cannot connect to {name}", why)
        made.append(self._adopt(connection))
        return True

    def _adopt(self, connection: native.Connection) -> Connection:
        return self._own(Connection(connection, self._runtime, self._reactor, owner=self))

    def _guarded(self) -> AbstractContextManager[Any]:
        return self._unless_forked(self._gate)

    def _unless_forked(self, lock: threading.RLock) -> AbstractContextManager[Any]:
        """The lock; none in a forked child, where the thread that holds the lock may not exist."""
        return lock if self._pid == os.getpid() else nullcontext()

    def _own(self, child: Child) -> Child:
        """Adds a child that close() will close; closes the child now if close() has begun."""
        with self._guarded():
            if not self._closing:
                self._children.add(child)
                return child
        child.close()
        raise ConnectionClosedError("the endpoint is closed")


def _close_all() -> None:
    # Engine threads must end before the interpreter. A forked child has none, so it skips this.
    for endpoint in list(_open_endpoints):
        if endpoint._pid == os.getpid():
            endpoint.close()


atexit.register(_close_all)
