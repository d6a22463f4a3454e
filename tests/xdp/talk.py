"""Two processes that exchange messages over a wire and tell what they counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tests.waiting import PATIENCE_S
from tests.xdp.support import V4, Wire

SIZES = [1, 100, 1400, 5000, 100_000, 3_000_000, 17]
COMMON = """
import json, sys, time
from transport import Endpoint

BYPASS = ("bypass_sent", "bypass_received")

def pattern(size):
    return (bytes(range(251)) * (size // 251 + 1))[:size]

def tell(endpoint, connection):
    found = endpoint.counters()
    names = ("datagrams_sent", "datagrams_received", "bypass_sent", "bypass_received",
             "malformed", "bad_crc")
    told = {name: getattr(found, name) for name in names}
    told["resent"] = connection.counters().segments_resent
    print(json.dumps(told), flush=True)

sizes = json.loads(sys.argv[1])
"""
SERVER = (
    COMMON
    + """
with Endpoint() as endpoint, endpoint.listen(port=7000, open=True) as listener:
    print("ready", endpoint.summary(), flush=True)
    with listener.accept(timeout_s=240) as connection:
        for size in sizes:
            assert connection.recv(size, timeout_s=240) == pattern(size)
            connection.send(pattern(size), timeout_s=240)
        print("under way", flush=True)
        if sys.argv[2] == "hold":
            input()
        while (got := connection.recv(1400, timeout_s=240)) != b"done":
            connection.send(got, timeout_s=240)
        tell(endpoint, connection)
"""
)
CLIENT = (
    COMMON
    + """
with Endpoint() as endpoint, endpoint.connect(sys.argv[3], 7000, timeout_s=240) as connection:
    for size in sizes:
        connection.send(pattern(size), timeout_s=240)
        assert connection.recv(size, timeout_s=240) == pattern(size)
    print("under way", flush=True)
    if sys.argv[2] == "hold":
        input()
        before = endpoint.counters()
        until_s = time.monotonic() + 240
        while any(getattr(endpoint.counters(), one) == getattr(before, one) for one in BYPASS):
            assert time.monotonic() < until_s, "nothing goes past the kernel any more"
            connection.send(pattern(1400), timeout_s=240)
            assert connection.recv(1400, timeout_s=240) == pattern(1400)
    connection.send(b"done", timeout_s=240)
    tell(endpoint, connection)
"""
)


@dataclass
class Told:
    """What an end counted, and what it wrote to its standard error."""

    counters: dict[str, int]
    errors: str

    def __getitem__(self, name: str) -> int:
        return self.counters[name]


def begin(
    wire: Wire,
    *,
    to: str = V4[1],
    hold: bool = False,
    client: Mapping[str, str] = MappingProxyType({}),
    **settings: str,
) -> tuple[Any, Any]:
    """Starts both ends; `client` has settings of the client only.

    With `hold` each end waits for a line once the messages have passed, and then goes on until
    datagrams have gone past the kernel in both directions.
    """
    words = (json.dumps(SIZES), "hold" if hold else "-")
    server = wire.start(1, SERVER, *words, **settings)
    assert server.stdout is not None
    assert server.stdout.readline().startswith("ready"), server.communicate()
    ends = server, wire.start(0, CLIENT, *words, to, **settings | dict(client))
    if hold:
        for end in ends:
            assert end.stdout is not None
            assert end.stdout.readline() == "under way\n", end.communicate()
    return ends


def finish(*processes: Any) -> list[Told]:
    """Waits for the ends; fails unless both end well."""
    for process in processes:
        with suppress(BrokenPipeError):  # without `hold` it may have ended
            process.stdin.write("\n")
            process.stdin.flush()
    found = []
    for process in processes:
        said, errors = process.communicate(timeout=2 * PATIENCE_S)
        assert process.returncode == 0, errors
        found.append(Told(json.loads(said.splitlines()[-1]), errors))
    return found


def talk(wire: Wire, **options: Any) -> list[Told]:
    """Exchanges messages of several sizes; returns what the server and the client tell."""
    return finish(*begin(wire, **options))
