"""Tests that `--strict` finds each careless policy, and raises no false alarm.

`make test` has some of them, `make test-long` the others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numba")

from tests.sample import sampled
from transport.cli.templates import TEMPLATES
from transport.compiler.source import load
from transport.conformance import Report, Settings, check_policy
from transport.conformance.result import Outcome

from .careless import CARELESS, Careless
from .mutants import ROOT

SETTINGS = Settings(events=2_000, quick=True, strict=True)
SAMPLE = {
    "clock_in_nanoseconds_wraps",
    "grants_counted_in_32_bits",
    "probes_on_every_timer",
    "heeds_losses_alone",
}


def test_careless__there_are_twenty_at_least_and_none_is_in_the_tree() -> None:
    assert len({one.name for one in CARELESS}) == len(CARELESS) >= 20
    for one in CARELESS:
        assert not one.changes or one.written() != (ROOT / one.file).read_text()


@pytest.mark.parametrize("careless", sampled(CARELESS, [one.name for one in CARELESS], SAMPLE))
def test_careless__is_found_by_its_check_if_strict(careless: Careless, tmp_path: Path) -> None:
    file = tmp_path / Path(careless.file).name
    file.write_text(careless.written())

    def enough(outcome: Outcome) -> bool:
        return not outcome.passed or (outcome.check == careless.check and outcome.fails(True))

    report = check_policy(load(file), SETTINGS, enough=enough)
    last = report.outcomes[-1]
    assert last.passed, f"{last.check} fails without --strict: {last.measured}"
    assert last.check == careless.check, "no check failed"
    assert last.where, "the network is not named"
    print(f"{last.check}: {last.measured}; {last.where}")


def failed(report: Report) -> list[str]:
    return [f"{one.check}: {one.measured}; {one.where}" for one in report.failures]


@pytest.mark.long
def test_latecomer__is_by_design_if_the_file_says_why(tmp_path: Path) -> None:
    text = (ROOT / "tests" / "policies" / "latecomer.py").read_text()
    stated = text.replace(
        'without=("newcomer_share",)',
        'intrinsic={"newcomer_share": "section 4.4: a latecomer measures the queue as its base"}',
    )
    assert stated != text
    file = tmp_path / "latecomer.py"
    file.write_text(stated)
    report = check_policy(load(file), SETTINGS)
    assert failed(report) == []
    assert "a newcomer's share" in [one.check for one in report.by_design]
    assert report.needless == ()


@pytest.mark.long
@pytest.mark.parametrize("file", ["examples/my_policy.py", "examples/write_a_policy/weft_copa.py"])
def test_strict__finds_nothing_in_an_example(file: str) -> None:
    assert failed(check_policy(load(ROOT / file), SETTINGS)) == []


@pytest.mark.long
@pytest.mark.parametrize("family", sorted(TEMPLATES))
def test_strict__finds_nothing_in_a_template(family: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(TEMPLATES[family].replace("{name}", "mine"))
    assert failed(check_policy(load(file), SETTINGS)) == []
