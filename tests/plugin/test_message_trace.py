"""Tests that the plugin's messages are traced, each with the channel that NCCL's profiler names."""

from pathlib import Path

import pytest

from transport.trace import Record, read_segment

from .conftest import Play

CHANNEL = 77  # the channel that the host program's profiler names
PROFILED = 9  # the last interface version that passes no profiler event with a message


@pytest.mark.parametrize("version", [9, 10, 11, 12])
def test_message_trace__names_the_channel(
    play: Play, plugin: Path, version: int, tmp_path: Path
) -> None:
    play(plugin, version, 2, "the_profiler_is_called_with_care", WEFT_TRACE=str(tmp_path))
    segments = [read_segment(path) for path in sorted(tmp_path.iterdir())]
    assert len(segments) == 2
    for segment in segments:
        assert (segment.damage, segment.dropped) == ("", 0)
        messages = [record for record in segment.records if record.kind == "message"]
        # All messages succeeded: 3 + 3 + 2 on each of two connections, one for each direction.
        assert [each.fields["status"] for each in messages] == [0] * 16
        tied = sorted(int(each.fields["bytes"]) for each in messages if tied_to(each) == CHANNEL)
        assert tied == ([0, 0, 1000, 1000, 100_000, 100_000] if version > PROFILED else [])
        assert {tied_to(each) for each in messages} <= {0, CHANNEL}


def tied_to(message: Record) -> int:
    return int(message.fields["channel"])
