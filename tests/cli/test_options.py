"""Tests the times that options of live commands take."""

from __future__ import annotations

import click
import pytest

from transport.cli import diagnose, report, top
from transport.cli.options import SecondsType


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2", 2.0), ("0.5", 0.5), ("500ms", 0.5), ("2s", 2.0), ("2 s", 2.0), ("2min", 120.0)],
)
def test_seconds__take_units_and_are_seconds_without(text: str, seconds: float) -> None:
    assert SecondsType(0.1, 3600).convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2x", "2x: expected seconds, or a time such as 500ms"),
        ("nan", "nan: expected seconds"),
        ("2h", "not in the range 0.1<=x<=3600"),
        ("1ms", "not in the range 0.1<=x<=3600"),
        ("", "not a valid"),
    ],
)
def test_seconds__refuse_what_is_no_time_or_out_of_range(text: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        SecondsType(0.1, 3600).convert(text, None, None)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (diagnose.command, ["interval", "window", "patience", "action-timeout"]),
        (report.command, ["interval"]),
        (top.command, ["interval"]),
    ],
)
def test_seconds__all_times_of_live_commands_take_units(
    command: click.Command, options: list[str]
) -> None:
    named = {option: one for one in command.params for option in one.opts}
    for option in options:
        found = named[f"--{option}"].type
        assert isinstance(found, SecondsType), option
