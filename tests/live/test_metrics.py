"""Tests `weft metrics` with real processes: over HTTP, once, and its errors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.api.support import PATIENCE_S, ROOT, line, running
from tests.live import board
from tests.live.check_board import serving
from tests.live.support import exchanging, weft, weft_command
from tests.waiting import until
from transport.live import names

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client.openmetrics.parser import (  # noqa: E402
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

# The parser of this format has no type annotations.
read_open_metrics = cast(Callable[[str], Iterator[object]], open_metrics_families)
Samples = dict[str, list[tuple[dict[str, str], float]]]


def parsed(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def get(target: str, accept: str = "text/plain") -> str:
    request = urllib.request.Request(f"http://{target}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return str(reply.read().decode())


def total(samples: Samples, name: str, pid: int) -> float:
    return sum(value for labels, value in samples.get(name, []) if labels["pid"] == str(pid))


def test_metrics__serves_counters_that_grow_until_the_process_ends(tmp_path: Path) -> None:
    with exchanging(tmp_path) as (echo, partner), serving(tmp_path) as target:
        get(target)  # counters of flows count from the first scrape

        def grows(name: str) -> Callable[[], bool]:
            return lambda: total(parsed(get(target)), name, partner.pid) > 0

        for name in ("weft_flow_sent_bytes_total", "weft_path_sent_bytes_total"):
            until(grows(name))
        samples = parsed(get(target))
        ranks = {one["pid"]: one.get("rank") for one, _ in samples["weft_process_info"]}
        assert ranks == {str(partner.pid): "3", str(echo.pid): None}
        assert len({one["path"] for one, _ in samples["weft_path_usable"]}) == 4
        families = {family.name: family for family in names.families()}
        for family in text_string_to_metric_families(get(target)):
            known = families[family.name]
            assert (family.documentation, family.type) == (known.help, known.kind)
        accept = "application/openmetrics-text; version=1.0.0"
        assert list(read_open_metrics(get(target, accept)))
        echo.kill()
        echo.wait()
        until(lambda: f'pid="{echo.pid}"' not in get(target))


def test_metrics__once_prints_all_that_was_counted(tmp_path: Path) -> None:
    with exchanging(tmp_path) as (_, partner):

        def counted() -> Samples | None:
            done = weft("metrics", str(partner.pid), "--once", where=tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            found = parsed(done.stdout)
            return found if total(found, "weft_flow_sent_bytes_total", partner.pid) else None

        samples = until(counted)
        assert {one["pid"] for one, _ in samples["weft_process_info"]} == {str(partner.pid)}
        done = weft("metrics", "--once", "--no-paths", "--max-series", "30", where=tmp_path)
        assert done.stderr.startswith("weft: more than 30 series; ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_metrics__ends_quietly(tmp_path: Path, number: int, status: int) -> None:
    process = subprocess.Popen(
        weft_command("metrics", "--listen", "127.0.0.1:0"),
        cwd=ROOT,
        env=os.environ | {"WEFT_TELEMETRY": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running(process):
        get(line(process).split("/")[2])
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == status
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_metrics__says_what_it_cannot_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = weft("metrics", "--listen", address, where=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"weft: cannot listen at {address}: Address already in use: ")
    assert "with --listen" in done.stderr
    done = weft("metrics", "--listen", "999.1.1.1:1", where=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("weft: cannot listen at 999.1.1.1:1: ")
    assert weft("metrics", "--once", where=tmp_path / "none").stderr.startswith("weft: cannot list")
    for wrong in ("9464", ":9464", "localhost:x", "localhost:70000", ""):
        done = weft("metrics", "--listen", wrong, where=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_metrics__writes_the_board(tmp_path: Path) -> None:
    done = weft("metrics", "--board", str(tmp_path / "board.json"), where=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "board.json").read_text() == board.BOARD.read_text()
    assert weft("metrics", "--board", "-", where=tmp_path).stdout == board.BOARD.read_text()
    assert weft("metrics", "--board", str(tmp_path / "a" / "b"), where=tmp_path).returncode == 2
