"""Tests that finalizing a communicator with open connections leaves nothing behind."""

from pathlib import Path

import pytest

from .conftest import Play

VERSIONS = (6, 7, 8, 9, 10, 11, 12)
WITH_FINALIZE = (11, 12)


@pytest.mark.parametrize("version", VERSIONS)
def test_fake__open_comms_go_with_finalize(play: Play, fake_plugin: Path, version: int) -> None:
    play(fake_plugin, version, 1, "finalize_open")


@pytest.mark.parametrize("version", WITH_FINALIZE)
def test_fake__only_those_of_the_context_go(play: Play, fake_plugin: Path, version: int) -> None:
    play(fake_plugin, version, 1, "finalize_one_of_two")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("processes", [1, 2])
def test_plugin__cycles_without_a_close_take_no_threads_and_descriptors(
    play: Play, plugin: Path, version: int, processes: int
) -> None:
    """Cycles of init and finalize that close no connection must leak no threads or descriptors."""
    play(plugin, version, processes, "finalize_open")


@pytest.mark.parametrize("version", WITH_FINALIZE)
@pytest.mark.parametrize("processes", [1, 2])
def test_plugin__finalize_leaves_other_communicators_alone(
    play: Play, plugin: Path, version: int, processes: int
) -> None:
    play(plugin, version, processes, "finalize_one_of_two")
