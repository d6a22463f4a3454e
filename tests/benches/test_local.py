"""Runs `bench local` tiny: the shape of its rows and of the ratios that are judged."""

import json
from typing import Any

from click.testing import CliRunner, Result

from bench import local
from bench.lib.record import seal_state
from bench.lib.stats import summarised

TINY = ("--repeats", "1", "--buffer", "1M", "--passes", "1", "--trips", "5", "--opens", "3")


def run(*words: str) -> Result:
    return CliRunner().invoke(local.command, [*TINY, *words])


def test_local__all_parts_of_all_contenders() -> None:
    done = run("--json", "-")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["bench"], seal_state(found)) == ("local", "whole")
    assert found["settings"] == {"buffer_bytes": 1 << 20, "passes": 1, "trips": 5, "opens": 3}
    streams = [row for row in found["rows"] if row["what"] == "stream"]
    assert {row["contender"] for row in streams} == {
        *local.LOCAL,
        *(kind.name for kind in local.STREAMS),
    }
    assert {row["size_bytes"] for row in streams} == {64 << 10, 1 << 20}  # 16 MB do not fit
    for row in found["rows"]:
        assert row["wrong"] == 0
        assert any(row.get(measure) for measure in found["measures"])
    assert {(row["what"], row["size_bytes"]) for row in found["ratios"]} == {
        *(("stream", 64 << 10), ("stream", 1 << 20), ("open", 0)),
        *((what, size) for what in ("loops", "polling", "asleep") for size in (8, 64 << 10)),
    }
    for row in found["ratios"]:
        judged = row["what"] in ("loops", "asleep", "open") or row["size_bytes"] >= 1 << 20
        assert (row["wanted"] is not None) == judged


def test_local__more_copiers_are_contenders_of_streams_alone() -> None:
    more = {"weft, 1 copier", "weft, 3 copiers"}
    assert more == {one.name for one in local.kinds("stream", (1, 3))} - {
        one.name for one in local.kinds("stream")
    }
    assert local.kinds("loops", (1, 3)) == local.kinds("loops")
    row = {"contender": "weft, 3 copiers", "size_bytes": 1 << 20, "buffer_bytes": 1 << 28}
    (said,) = local.said_of_copiers([row | {"rate_bytes_per_s": 1e10, "cpu_s_per_gbyte": 0.2}])
    assert said == "1 MiB of 256 MiB, weft, 3 copiers: 10 GB/s, 0.2 CPU s/GB"


def test_local__the_table_names_the_setting_of_tcp() -> None:
    done = run("--only", "asleep")
    assert done.exit_code == 0, done.output
    _, *lines = [line for line in done.stdout.splitlines() if "half round trip" in line]
    assert lines
    assert all(line.split()[-1] == "blocks" for line in lines)


def test_local__the_best_setting_of_tcp_is_compared() -> None:
    names = (*local.LOCAL, "TCP spins", "TCP blocks")
    rates = dict(zip(names, (8.0, 4.0, 2.0, 1.0, 4.0), strict=True))
    rows = [
        {
            "what": "stream",
            "size_bytes": 1 << 20,
            "buffer_bytes": 1 << 28,
            "contender": name,
            "round": 0,
            "rate_bytes_per_s": rate,
            "cpu_s_per_gbyte": rate,
        }
        for name, rate in rates.items()
    ]
    found = summarised(rows, local.KEYS, local.MEASURES)
    rate, cpu = local.compared(found, rows)
    assert (rate["setting"], rate["ratio"], rate["wanted"]) == ("TCP blocks", 2.0, 1.7)
    assert (cpu["setting"], cpu["ratio"], cpu["wanted"]) == ("TCP spins", 8.0, 0.6)
    assert (rate["ratio_of_best"], cpu["ratio_of_best"]) == (2.0, 8.0)
    assert list(local.compared(found[:3], rows[:3])) == []


def test_local__a_wrong_byte_is_seen() -> None:
    memory = local.filled(2 << 20)
    assert local.wrong_blocks(memory, 2 << 20) == 0
    memory[-1] ^= 1
    assert local.wrong_blocks(memory, 2 << 20) == 1
    assert local.wrong_blocks(memory, 1 << 20) == 0


def test_local__a_buffer_that_messages_do_not_divide_is_refused() -> None:
    done = CliRunner().invoke(local.command, ["--buffer", "3M"])
    assert (done.exit_code, "must be a power of two" in done.output) == (2, True)
