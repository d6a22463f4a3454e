"""Tests receives of several buffers, each for the send with its tag (WEFT_NCCL_RECEIVES_MAX)."""

from pathlib import Path

import pytest

from .conftest import Play

VERSIONS = (6, 7, 8, 9, 10, 11, 12)
ENDS = (6, 12)
GROUPED = {"WEFT_NCCL_RECEIVES_MAX": "8"}
SCENARIOS = [
    "groups_take_turns",
    "groups_match_tags",
    "groups_of_any_size_and_order",
    "a_send_waits_for_its_tag",
    "groups_close_outstanding",
    "groups_fail_with_the_peer",
    "groups_refuse_wrong_arguments",
]
# Scenarios with plain receives, which are groups of one buffer where receives are grouped.
PLAIN = [
    "transfer",
    "properties",
    "restart",
    "hammer",
    "empty_messages_keep_their_turn",
    "sizes_are_those_of_the_messages",
    "done_requests_are_used_again",
    "a_registration_goes_alone",
    "threads_connect_to_themselves",
    "closed_connections_leave_nothing",
    "abandoned_connects_end_with_the_listener",
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_groups__between_processes(play: Play, plugin: Path, version: int, scenario: str) -> None:
    play(plugin, version, 2, scenario, **GROUPED)


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_groups__where_every_step_may_say_not_now(
    play: Play, fake_plugin: Path, version: int, scenario: str
) -> None:
    play(fake_plugin, version, 1, scenario, **GROUPED)


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("scenario", ["groups_match_tags", "groups_of_any_size_and_order"])
def test_groups__over_a_bad_network(play: Play, plugin: Path, version: int, scenario: str) -> None:
    faults = {"WEFT_FAULT": "loss=0.02,reorder=0.05,duplicate=0.02,corrupt=0.01"}
    play(plugin, version, 2, scenario, **GROUPED, **faults)


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("scenario", ["groups_must_be_agreed"])
def test_groups__must_be_agreed(play: Play, plugin: Path, version: int, scenario: str) -> None:
    done = play(plugin, version, 2, scenario, **GROUPED)
    assert "the peer has another WEFT_NCCL_RECEIVES_MAX" in done.stderr


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("scenario", ["groups_refuse_wrong_tags"])
def test_groups__wrong_tags_fail_the_send_alone(
    play: Play, plugin: Path, version: int, scenario: str
) -> None:
    play(plugin, version, 2, scenario, **GROUPED)


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("scenario", PLAIN)
def test_groups__of_one_buffer_are_as_plain_receives(
    play: Play, plugin: Path, version: int, scenario: str
) -> None:
    play(plugin, version, 2, scenario, **GROUPED)
