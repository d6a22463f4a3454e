"""Tests the points of README.md: what NCCL expects of a network plugin beyond its headers."""

from pathlib import Path

import pytest

from .conftest import Play

VERSIONS = (6, 7, 8, 9, 10, 11, 12)
ENDS = (6, 12)
MESSAGES = [
    "requests_are_always_written",
    "the_hint_of_a_receive_is_overwritten",
    "empty_messages_keep_their_turn",
    "sizes_are_those_of_the_messages",
    "done_requests_are_used_again",
    "sizes_may_be_left_out",
    "received_bytes_are_there_when_done",
    "any_part_of_memory_registers",
    "a_registration_goes_alone",
]
SETUP = [
    "attempts_keep_apart_and_end",
    "peers_come_early_late_and_in_vain",
    "connections_outlive_their_listener",
    "a_handle_is_plain_bytes",
    "every_property_is_filled",
    "threads_share_the_plugin",
    "threads_connect_to_themselves",
]
PROCESS = ["descriptors_close_on_exec", "signals_are_left_alone", "no_cuda_is_loaded"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", MESSAGES + SETUP + PROCESS)
def test_point__holds_between_processes(
    play: Play, plugin: Path, version: int, scenario: str
) -> None:
    play(plugin, version, 2, scenario)


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("scenario", MESSAGES + SETUP)
def test_point__holds_where_every_step_may_say_not_now(
    play: Play, fake_plugin: Path, version: int, scenario: str
) -> None:
    play(fake_plugin, version, 1, scenario)


@pytest.mark.parametrize("version", [12])
@pytest.mark.parametrize("scenario", MESSAGES + SETUP)
def test_point__holds_within_a_process(
    play: Play, plugin: Path, version: int, scenario: str
) -> None:
    play(plugin, version, 1, scenario)


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize(
    "scenario", ["closed_connections_leave_nothing", "abandoned_connects_end_with_the_listener"]
)
def test_point__holds_over_many_rounds(
    play: Play, plugin: Path, version: int, scenario: str
) -> None:
    play(plugin, version, 2, scenario)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["progress_needs_no_calls"])
def test_point__holds_with_losses(play: Play, plugin: Path, version: int, scenario: str) -> None:
    play(plugin, version, 2, scenario, WEFT_FAULT="loss=0.05,reorder=0.05")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["each_side_has_its_own_device"])
def test_point__holds_on_two_fake_devices(
    play: Play, fake_plugin: Path, version: int, scenario: str
) -> None:
    play(fake_plugin, version, 1, scenario)


@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.parametrize("scenario", ["contexts_serve_any_device"])
def test_point__holds_for_every_context(
    play: Play, plugin: Path, fake_plugin: Path, version: int, scenario: str
) -> None:
    """Runs only on ABI versions 11 and 12: older versions of the net plugin have no contexts."""
    play(plugin, version, 2, scenario)
    play(fake_plugin, version, 1, scenario)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["unloading_while_threads_run"])
def test_point__holds_when_unloaded(play: Play, plugin: Path, version: int, scenario: str) -> None:
    """The net plugin's ABI has no finalize before version 11, so NCCL unloads it without a call."""
    play(plugin, version, 2, scenario)


@pytest.mark.parametrize("version", [10, 11, 12])
@pytest.mark.parametrize("scenario", ["the_profiler_is_called_with_care"])
def test_point__holds_for_the_profiler(
    play: Play, plugin: Path, version: int, scenario: str
) -> None:
    """Tests points about the profiler, which versions 6 to 9 do not have."""
    play(plugin, version, 2, scenario)
