"""Takes the queries from the Grafana board."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.api.support import ROOT

BOARD = ROOT / "transport" / "live" / "weft-grafana.json"
METRIC = re.compile(r"\bweft_[a-z0-9_]+")


def load() -> dict[str, Any]:
    """The Grafana board, parsed from its JSON file."""
    found: dict[str, Any] = json.loads(BOARD.read_text())
    return found


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (title of its panel, query) for every query of the board."""
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def filled_in(query: str, interval: str) -> str:
    """The query with values for Grafana's variables."""
    return (
        query.replace("$__rate_interval", interval).replace("$instance", ".*").replace("$pid", ".*")
    )
