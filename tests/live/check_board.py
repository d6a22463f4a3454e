"""Checks with a real Prometheus that every query of the Grafana board is answered with data.

python -m tests.live.check_board: needs `prometheus` on PATH (Debian's package of this name).
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.api.support import PATIENCE_S, ROOT, line, running
from tests.live import board
from tests.live.support import exchanging, weft_command

INTERVAL = "5s"
CONFIG = """\
global:
  scrape_interval: 500ms
  scrape_timeout: 500ms
scrape_configs:
  - job_name: weft
    static_configs:
      - targets: ["{target}"]
"""


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(where: Path, *arguments: str) -> Iterator[str]:
    """Runs `weft metrics` on a free port; yields HOST:PORT."""
    process = subprocess.Popen(
        weft_command("metrics", "--listen", "127.0.0.1:0", *arguments),
        cwd=ROOT,
        env=os.environ | {"WEFT_TELEMETRY": str(where), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running(process):
        yield line(process).split("/")[2]


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Runs Prometheus on loopback with one target; yields its URL."""
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(target=target))
    address = f"127.0.0.1:{free_port()}"
    arguments = ["--config.file", config, "--storage.tsdb.path", folder / "data"]
    process = subprocess.Popen(
        ["prometheus", *map(str, arguments), f"--web.listen-address={address}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def answer(url: str, query: str) -> list[dict[str, Any]]:
    """The series that a query returns now."""
    data = urllib.parse.urlencode({"query": query}).encode()
    with urllib.request.urlopen(f"{url}/api/v1/query", data, timeout=PATIENCE_S) as reply:
        document = json.load(reply)
    found: list[dict[str, Any]] = document["data"]["result"]
    return found


def has_data(series: list[dict[str, Any]]) -> bool:
    """Whether the value of at least one series is a number."""
    return any(not math.isnan(float(one["value"][1])) for one in series)


def unanswered(url: str) -> list[str]:
    """Waits until all queries return data; returns the queries without data at the time limit."""
    every = board.queries(board.load())
    # weft diagnose --live serves the metrics of verdicts, and only about faults.
    asked = [f"{title}: {query}" for title, query in every if "weft_diagnosis_" not in query]
    end = time.monotonic() + PATIENCE_S
    left = asked
    while left and time.monotonic() < end:
        time.sleep(0.5)  # Prometheus reads new values this often
        try:
            left = [
                text
                for text in left
                if not has_data(answer(url, board.filled_in(text.split(": ", 1)[1], INTERVAL)))
            ]
        except OSError:
            continue  # Prometheus is still starting
    return left


def check(folder: Path) -> list[str]:
    """Runs two processes that exchange messages; returns the queries without data."""
    pages = folder / "pages"
    pages.mkdir()
    with (
        exchanging(pages, WEFT_FAULT="loss=0.01"),
        serving(pages) as target,
        prometheus(folder, target) as url,
    ):
        return unanswered(url)


def main() -> int:
    """Prints the queries without data; returns 1 if there are any."""
    with tempfile.TemporaryDirectory() as folder:
        left = check(Path(folder))
    print(*left, sep="\n", end="\n" if left else "")
    print(f"queries without data: {len(left)}")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
