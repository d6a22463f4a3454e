"""Tests names, kinds and units of the metrics."""

import re
from pathlib import Path

from transport.live import REASONS, names
from transport.live.columns import SORTABLE
from transport.telemetry import CounterRow, table

ROOT = Path(__file__).resolve().parents[2]
LIVE_PAGE = ROOT / "docs" / "LIVE.md"


def family(scope: str, name: str, unit: str, kind: str) -> names.Family:
    return names.family_of(CounterRow(scope, name, unit, kind, "what it counts"))


def test_names__of_counters() -> None:
    cases = {
        ("flow", "bytes_sent", "bytes", "sum"): ("weft_flow_sent_bytes_total", "counter", 1),
        ("flow", "window_bytes", "bytes", "gauge"): ("weft_flow_window_bytes", "gauge", 1),
        ("path", "rtt_ns", "ns", "maximum"): ("weft_path_rtt_seconds", "gauge", 10**9),
        ("engine", "reestablish_ns_max", "ns", "maximum"): (
            "weft_engine_reestablish_max_seconds",
            "gauge",
            10**9,
        ),
        ("peer", "flows", "count", "gauge"): ("weft_peer_flows", "gauge", 1),
        ("engine", "calls", "count", "sum"): ("weft_engine_calls_total", "counter", 1),
    }
    for row, (sample, kind, per_unit) in cases.items():
        found = family(*row)
        assert (found.sample_names, found.kind, found.per_unit) == ((sample,), kind, per_unit)
        assert found.help == "what it counts"
    histogram = family("engine", "batch", "datagrams", "histogram")
    assert histogram.sample_names == tuple(
        f"weft_engine_batch_{e}" for e in ("bucket", "count", "sum")
    )


def test_names__are_valid_and_differ() -> None:
    every = names.families()
    samples = [sample for each in every for sample in each.sample_names]
    assert len(samples) == len(set(samples))
    assert all(re.fullmatch(r"weft_[a-z0-9_]+", sample) for sample in samples)
    assert all(each.help for each in every)
    assert not any(each.name.endswith(("_ns", "_total")) for each in every)
    rows = {(row.scope, row.name): row.sentence for row in table()}
    assert {key: each.help for key, each in names.counters().items()} == rows


def test_names__the_page_lists_every_metric() -> None:
    """If this fails, put the output of transport.live.names.markdown() into docs/LIVE.md."""
    text = LIVE_PAGE.read_text()
    assert names.markdown([*names.STATES.values(), *names.EXPORTER.values()]) in text


def test_waits__the_page_explains_every_reason() -> None:
    text = LIVE_PAGE.read_text()
    assert all(f"| `{reason}` | {meaning} |" in text for reason, meaning in REASONS.items())


def test_top__the_page_explains_every_column() -> None:
    text = LIVE_PAGE.read_text()
    assert all(f"`{heading}`" in text for heading in SORTABLE)
