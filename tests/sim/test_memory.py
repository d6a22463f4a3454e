"""Tests that the lowest memory limit of host and control groups applies to simulations."""

from pathlib import Path

import click
import pytest

from transport.cli import sim
from transport.cli.memory import available_bytes


def files(folder: Path, own: str, limits: dict[str, str]) -> tuple[Path, Path, Path]:
    meminfo = folder / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    4000 kB\n")
    group = folder / "cgroup"
    group.write_text(own)
    for name, text in limits.items():
        file = folder / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return meminfo, group, folder / "groups"


@pytest.mark.parametrize(
    ("own", "limits", "left"),
    [
        ("0::/\n", {}, 4_096_000),
        ("0::/a/b\n", {"a/memory.max": "3000000\n", "a/memory.current": "1000000\n"}, 2_000_000),
        ("0::/a\n", {"a/memory.max": "max\n", "a/memory.current": "1\n"}, 4_096_000),
        (
            "5:memory:/x\n3:cpu:/x\n",
            {"memory/memory.limit_in_bytes": "900", "memory/memory.usage_in_bytes": "1000"},
            0,
        ),
    ],
)
def test_memory__the_least_counts(
    own: str, limits: dict[str, str], left: int, tmp_path: Path
) -> None:
    assert available_bytes(*files(tmp_path, own, limits)) == left


def test_memory__nothing_known_is_none(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    assert available_bytes(missing, missing, missing) is None


def test_memory__what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, "available_bytes", lambda: 1_000_000)
    sim.check_memory(1_000_000)
    with pytest.raises(
        click.ClickException, match=r"about 1\.5 MB of memory, and 1 MB are available"
    ):
        sim.check_memory(1_500_000)
    with pytest.raises(click.ClickException, match="4 at once"):
        sim.check_memory(300_000, 4)
