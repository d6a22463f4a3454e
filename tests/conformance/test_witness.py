"""Tests that every report of a failed hook gives its line and exception."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numba")

from transport.compiler.source import load
from transport.conformance import Settings, check_policy

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_policy.py"
GROWTH = "    flow.window_bytes += event.segment_bytes * event.acked_bytes / flow.window_bytes\n"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("    1 // (event.acked_segments - event.acked_segments)\n", "ZeroDivisionError"),
        ("    if event.delivered_bytes > 40_000_000:\n        raise ValueError('far')\n", "far"),
    ],
)
def test_check__names_the_line_and_the_exception(tmp_path: Path, fault: str, words: str) -> None:
    text = EXAMPLE.read_text()
    assert GROWTH in text
    fault = fault.replace("1 //", "flow.last_cut_ns = 1 //")
    file = tmp_path / "mine.py"
    file.write_text(text.replace(GROWTH, fault + GROWTH))
    lines = file.read_text().splitlines()
    wrong = next(at for at, line in enumerate(lines, 1) if "1 //" in line or "raise" in line)
    report = check_policy(load(file), Settings(4_000, quick=True))
    said = {one.check: one.measured for one in report.failures}
    place = f"mine.py:{wrong}: "
    for check in ("hooks run through", "never gives way", "answers in range"):
        assert place in said[check], said
        assert words in said[check]
