"""Tests that a report has the numbers of the commands, on a simulated job with a straggler."""

import base64
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.diagnose.support import traced
from tests.report.support import Page, reported, said
from transport.cli import weft
from transport.ground.units import bytes_text, percent, time_text

ALONE = "750us"
STRAGGLER = {
    "kind": "straggler",
    "rank": 9,
    "compute_factor": 1.6,
    "at_step": 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traced(tmp_path_factory.mktemp("job") / "a folder", STRAGGLER)


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return reported(folder, "--price", "3", "--currency", "EUR", "--alone", ALONE)


def test_report__has_the_verdicts_of_the_command(folder: Path, page: Page) -> None:
    found = said("diagnose", str(folder), status=1)
    numbers = page.data["numbers"]
    for name in ("answer", "ranks", "missing", "iterations", "iteration_ns"):
        assert numbers[name] == found[name], name
    assert [(one["class"], one["place"]) for one in numbers["findings"]] == [
        (one["class"], one["place"]["name"]) for one in found["findings"]
    ]
    assert ("data-answer", "found") in page.attributes
    for one in found["findings"]:
        for text in (one["meaning"], one["evidence"], one["advice"], one["place"]["name"]):
            assert text in page.text
        assert shlex.join(["weft", "trace", "query", str(folder), one["query"]]) in page.commands


def test_report__has_the_lost_time_of_the_command(folder: Path, page: Page) -> None:
    found = said("diagnose", str(folder), "--lost-time")
    numbers = page.data["numbers"]
    assert (numbers["waited_ns"], numbers["job_ns"]) == (found["waited_ns"], found["job_ns"])
    (series,) = page.chart("late")["series"]
    assert series[1] == [one["waited_ns"] for one in found["ranks"][:16]]
    heads, *rows = page.rows["Ranks that others waited for, the costliest first"]
    assert heads[:3] == ["rank", "host", "others waited"]
    assert [row[:4] for row in rows] == [
        [
            f"rank {one['rank']}",
            *(one["host"], time_text(one["waited_ns"]), percent(one["share"])),
        ]
        for one in found["ranks"][:16]
    ]
    assert "and 16 more ranks" in page.text


def test_report__money_is_hours_times_the_price(folder: Path, page: Page) -> None:
    found = said("diagnose", str(folder), "--lost-time")
    hours = found["waited_ns"] / 3600e9
    numbers = page.data["numbers"]
    assert numbers["lost_hours"] == pytest.approx(hours)
    assert numbers["lost_money"] == pytest.approx(3 * hours)
    a_day = 24 * 32 * found["waited_ns"] / found["job_ns"]
    assert f"a day of the job loses {a_day:.2f} GPU-hours ({3 * a_day:.2f} EUR)" in page.text
    without = reported(folder)
    assert without.data["numbers"]["lost_money"] is None
    assert "USD" not in without.text


@pytest.mark.parametrize("measure", ["bytes", "messages", "latency_mean"])
def test_report__has_the_matrix_of_the_command(folder: Path, page: Page, measure: str) -> None:
    found = said("trace", "matrix", str(folder), "--measure", measure)
    (shown,) = (one for one in page.data["matrices"] if one["measure"] == measure)
    assert shown["labels"] == found["labels"]

    def unpacked(name: str, kind: str) -> list[float]:
        values: list[float] = np.frombuffer(base64.b64decode(shown[name]), kind).tolist()
        return values

    at = unpacked("cells", "<u4")
    cells = dict(zip(at, unpacked("values", f"<{shown['floats']}"), strict=True))
    assert cells == {32 * int(one["from"]) + int(one["to"]): one["value"] for one in found["cells"]}
    # Hosts of eight share a leaf: a thick line between these, a thin one between other hosts.
    racks = [row for row, kind in shown["borders"] if kind == "rack"]
    assert (racks, len(shown["borders"])) == ([8, 16, 24], 31)


def test_report__has_the_racks_of_an_inventory(folder: Path) -> None:
    file = folder.parent / "racks.toml"
    named = [(at, "a" if at < 12 else "b") for at in range(32)]
    file.write_text("".join(f'[hosts.host{at}]\nrack = "{rack}"\n' for at, rack in named))
    page = reported(folder, "--inventory", str(file))
    for one in page.data["matrices"]:
        assert one["racks"] == [rack for _, rack in named]
        assert [row for row, kind in one["borders"] if kind == "rack"] == [12]
    assert "rank 9 on host9, rack a" in page.text
    assert shlex.join(["weft", "diagnose", str(folder), "--inventory", str(file)]) in page.commands


def test_report__has_the_operations_of_the_command(folder: Path, page: Page) -> None:
    found = said("trace", "profile", str(folder))["by_size"]
    assert page.chart("calls")["series"] == [["AllReduce", [one["count"] for one in found]]]
    assert page.chart("times")["series"] == [["AllReduce", [one["time_ns"] for one in found]]]
    _, *rows = page.rows["Operations by size, the costliest first"]
    assert {(row[2], row[3], row[4]) for row in rows} == {
        (f"{one['count']:,}", bytes_text(one["bytes"]), time_text(one["time_ns"])) for one in found
    }


def test_report__has_the_steps_and_gains_of_the_command(folder: Path, page: Page) -> None:
    found = said("estimate", "overlap", str(folder), "--alone", ALONE)
    by_name = {f"rank {one['rank']}": one for one in found["steps"]}
    chart = page.chart("step")
    parts = dict(chart["series"])
    assert chart["labels"][0] == f"median of {len(found['steps'])} ranks"
    for at, name in enumerate(chart["labels"][1:], 1):
        assert parts["exposed communication"][at] == by_name[name]["exposed_ns"]
        assert parts["hidden communication"][at] == by_name[name]["hidden_ns"]
        assert sum(values[at] for values in parts.values()) == pytest.approx(
            by_name[name]["step_ns"]
        )
    (spans,) = page.chart("faster")["series"]
    assert spans[1] == [[one["least_ns"], one["most_ns"]] for one in found["faster"]]


def test_report__counters_are_those_of_the_trace(folder: Path, page: Page) -> None:
    (row,) = said(
        *("trace", "query", str(folder)),
        "SELECT sum(bytes) AS bytes FROM messages WHERE sends AND end_ns IS NOT NULL",
    )
    _, *rows = page.rows["Counters of the job"]
    in_all = {cells[0]: cells[1] for cells in rows}
    assert in_all["bytes sent over the network"] == bytes_text(row["bytes"])
    (row,) = said(
        *("trace", "query", str(folder)),
        "SELECT sum(resent) AS resent FROM stripes WHERE sends",
    )
    assert in_all["segments sent again"] == f"{row['resent']:,}"


def test_report__each_command_on_the_page_runs(page: Page) -> None:
    assert len(page.commands) >= 10
    for command in page.commands:
        name, *words = shlex.split(command)
        assert name == "weft"
        done = CliRunner().invoke(weft, words)
        assert done.exit_code in ((0, 1, 3, 4) if words[0] == "diagnose" else (0,)), command


def test_report__a_command_gives_the_bins_of_a_chart(page: Page) -> None:
    (command,) = (one for one in page.commands if "sum(bytes)::BIGINT" in one)
    _, *words = shlex.split(command)
    (series,) = page.chart("sent")["series"]
    bins = {one["bin"]: one["bytes"] for one in said(*words)}
    bin_ns = int(command.partition(" // ")[2].split()[0])
    assert {at: rate for at, rate in enumerate(series[1]) if rate} == {
        at: pytest.approx(size * 1e9 / bin_ns) for at, size in bins.items() if size
    }
