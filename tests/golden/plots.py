"""Draws the committed traces as SVG, without a plotting library: windows above, queue below."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.golden.traces import path_of, read

OUT = Path(__file__).resolve().parents[2] / "docs" / "golden"
WIDTH, HEIGHT, LOWER, MARGIN = 900, 220, 110, 60
COLOURS = ("#1f6fb2", "#d1661f")


def polyline(x: np.ndarray, y: np.ndarray, colour: str) -> str:
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<polyline fill="none" stroke="{colour}" stroke-width="1.2" points="{points}"/>'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>'


def panel(top: float, height: float, x: np.ndarray, series: list[np.ndarray], unit: str) -> str:
    most = max(float(max(one.max() for one in series)), 1.0)
    parts = [
        f'<rect x="{MARGIN}" y="{top}" width="{WIDTH}" height="{height}" fill="none" '
        'stroke="#999"/>',
        text(MARGIN - 6, top + 12, f"{most:.0f}", "end"),
        text(MARGIN - 6, top + height, "0", "end"),
        text(MARGIN + 6, top + 16, unit),
    ]
    across = MARGIN + WIDTH * x / max(float(x.max()), 1e-9)
    for values, colour in zip(series, COLOURS, strict=False):
        parts.append(polyline(across, top + height * (1 - values / most), colour))
    return "\n".join(parts)


def drawn(stage: str) -> str:
    columns = read(stage)
    ms = columns["at_us"] / 1e3
    windows = [columns["window_0"] / 4096]
    if not stage.startswith("wide"):
        second = columns["window_1"] / 4096
        second[(ms < 20) | (ms > ms[np.argmax(columns["delivered_1"])])] = 0
        windows.append(second)
    total = MARGIN + HEIGHT + LOWER + 70
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 2 * MARGIN}" '
            f'height="{total}" font-family="sans-serif" font-size="12">',
            text(MARGIN, 30, f"{stage.replace('_', ', ')}: {ms.max():.0f} ms"),
            panel(40, HEIGHT, ms, windows, "window, segments"),
            panel(60 + HEIGHT, LOWER, ms, [columns["queue"] / 1e3], "queue, kB"),
            "</svg>\n",
        ]
    )


def write_all(stages: list[str]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for stage in stages:
        if path_of(stage).exists():
            (OUT / f"{stage}.svg").write_text(drawn(stage))
