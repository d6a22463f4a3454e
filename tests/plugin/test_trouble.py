"""Tests the plugin under signals, stopped and killed peers, forks, many connections and devices."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.support import reason_to_skip
from tests.waiting import until
from transport import telemetry
from transport.lab import namespace

from .conftest import Play

VERSIONS = (6, 7, 8, 9, 10, 11, 12)
# Behaviour that is the same in all interface versions is tested with the oldest and the newest.
ENDS = (6, 12)
DEVICES = ("w0", "w1", "w2")
# With these knobs, only a proof of death ends a connection within the patience of the host program.
ONLY_PROVEN = {
    "WEFT_PEER_TIMEOUT": "silence=1h,dead=1h",
}


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("scenario", ["signals_interrupt_nothing", "signals_cut_no_close_short"])
def test_trouble__signals(play: Play, plugin: Path, version: int, scenario: str) -> None:
    play(plugin, version, 2, scenario)


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("scenario", ["calls_return_while_the_peer_is_stopped"])
def test_trouble__no_call_waits_for_a_peer(
    play: Play, plugin: Path, version: int, scenario: str
) -> None:
    play(plugin, version, 2, scenario)


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("scenario", ["a_stopped_peer_is_waited_for"])
def test_trouble__stall(play: Play, plugin: Path, version: int, scenario: str) -> None:
    """Scenarios in which a peer is stopped for longer than the allowed network silence."""
    play(plugin, version, 2, scenario, WEFT_PEER_TIMEOUT="silence=500ms")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["a_killed_peer_fails_alone"])
def test_trouble__kill(play: Play, plugin: Path, version: int, scenario: str) -> None:
    play(plugin, version, 4, scenario, **ONLY_PROVEN)


def test_trouble__kill_leaves_the_counters(play: Play, plugin: Path, tmp_path: Path) -> None:
    """A killed process leaves its telemetry page; the survivor removes its own when it ends."""
    play(plugin, 11, 4, "a_killed_peer_fails_alone", WEFT_TELEMETRY=str(tmp_path))
    (left,) = telemetry.pages(tmp_path)
    page = telemetry.read_page(left)
    assert page.process_state == "gone"
    assert sum(flow.counters["bytes_received"] for flow in page.flows) > 0
    assert sum(path.counters["segments_sent"] for peer in page.peers for path in peer.paths) > 0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["a_survivor_links_anew"])
def test_trouble__relink(play: Play, plugin: Path, version: int, scenario: str) -> None:
    play(plugin, version, 5, scenario)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["a_program_may_end_without_closing"])
def test_trouble__exit(play: Play, plugin: Path, version: int, scenario: str) -> None:
    play(plugin, version, 2, scenario)


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize(
    "scenario", ["forks_disturb_no_transfer", "a_child_that_lives_on_hides_no_death"]
)
def test_trouble__fork(play: Play, plugin: Path, version: int, scenario: str) -> None:
    play(plugin, version, 2, scenario, **ONLY_PROVEN)


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("scenario", ["many"])
def test_trouble__five_hundred_connections(
    play: Play, plugin: Path, version: int, processes: int, scenario: str
) -> None:
    play(plugin, version, processes, scenario)


def add_devices() -> None:
    """Adds interfaces to this thread's namespace, each with an address in its own subnet."""
    from pyroute2 import IPRoute

    with IPRoute() as kernel:
        kernel.link("set", index=kernel.link_lookup(ifname="lo")[0], state="up")
        for number, name in enumerate(DEVICES):
            kernel.link("add", ifname=name, kind="veth", peer={"ifname": f"{name}-far"})
            index = kernel.link_lookup(ifname=name)[0]
            kernel.addr("add", index=index, address=f"10.77.{number}.1", prefixlen=24)
            for end in (name, f"{name}-far"):
                kernel.link("set", index=kernel.link_lookup(ifname=end)[0], state="up")

        def all_run() -> bool:
            """Whether each veth has a carrier, which takes it a moment."""
            links = [kernel.get_links(kernel.link_lookup(ifname=name)[0])[0] for name in DEVICES]
            return {link.get_attr("IFLA_OPERSTATE") for link in links} == {"UP"}

        until(all_run, "the devices have no carrier")


@pytest.fixture(scope="module")
def devices() -> Iterator[str]:
    """Makes a network namespace with three devices and yields its name."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    name = f"test-weft-plugin-{os.getpid()}"
    namespace.make(name)
    try:
        namespace.inside(name, add_devices)
        yield name
    finally:
        namespace.remove(name)


@pytest.mark.namespaces
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "scenario", ["each_side_has_its_own_device", "every_property_is_filled", "properties"]
)
def test_trouble__several_devices(
    play: Play, plugin: Path, devices: str, version: int, scenario: str
) -> None:
    def inside() -> Any:
        return play(plugin, version, 2, scenario, WEFT_INTERFACES=",".join(DEVICES))

    namespace.inside(devices, inside)


@pytest.mark.namespaces
@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.parametrize("scenario", ["contexts_serve_any_device"])
def test_trouble__contexts_on_several_devices(
    play: Play, plugin: Path, devices: str, version: int, scenario: str
) -> None:
    """Contexts on several devices, which versions 8 to 10 do not have."""

    def inside() -> Any:
        return play(plugin, version, 2, scenario, WEFT_INTERFACES=",".join(DEVICES))

    namespace.inside(devices, inside)
