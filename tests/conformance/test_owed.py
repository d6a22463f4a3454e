"""Tests the checks of required properties, by faults that only these checks find."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("numba")

from congestion.promises import Promises
from congestion.registry import find
from transport.compiler import PolicyError
from transport.compiler.library import jit
from transport.compiler.source import load
from transport.conformance import Settings, check_policy, gates
from transport.conformance.result import Outcome, excused, verdict
from transport.conformance.signals import as_declared

ROOT = Path(__file__).resolve().parents[2]

# The source of a plain window policy; each fault replaces a part of it.
TEXT = """
from congestion.api import record, window_policy
from congestion.promises import Promises

Flow = record(window_bytes=float, cut_ns=int, acks=int)
Params = record(share=0.5)


def answer(flow, event, result):
    most = float(event.window_bytes_max)
    flow.window_bytes = min(max(flow.window_bytes, 2.0 * event.segment_bytes), most)
    result.window_bytes = flow.window_bytes


def start(flow, params, event, result):
    flow.window_bytes = max(event.hint_window_bytes, 10.0 * event.segment_bytes)
    answer(flow, event, result)


def ack(flow, params, event, result):
    flow.acks += 1
    flow.window_bytes += event.segment_bytes * event.acked_bytes / flow.window_bytes
    answer(flow, event, result)


def lost(flow, params, event, result):
    if event.now_ns - flow.cut_ns > event.srtt_ns:
        flow.cut_ns = event.now_ns
        flow.window_bytes *= params.share
    answer(flow, event, result)


def expired(flow, params, event, result):
    flow.window_bytes *= params.share
    answer(flow, event, result)


POLICY = window_policy(
    "mine", flow=Flow, params=Params, on_start=start, on_ack=ack, on_loss=lost, on_timeout=expired,
    promises=Promises(),
)
"""
GROWTH = "    flow.window_bytes += event.segment_bytes * event.acked_bytes / flow.window_bytes\n"
FAULTS = {
    "grows to infinity": (
        "    flow.window_bytes = min(max(flow.window_bytes, 2.0 * event.segment_bytes), most)\n",
        "    flow.window_bytes = max(flow.window_bytes, 2.0 * event.segment_bytes) * 1e30\n",
        "takes over",
    ),
    "never shrinks on loss": (
        "        flow.window_bytes *= params.share\n    answer",
        "        flow.window_bytes *= 1.0\n    answer",
        "response to loss",
    ),
    "undoes every cut": (
        GROWTH,
        "    flow.window_bytes = event.window_bytes_max * 0.5\n",
        "response to loss",
    ),
    "undoes every cut once it has delivered much": (
        GROWTH,
        GROWTH
        + "    if event.delivered_bytes > 1_000_000_000_000:\n"
        + "        flow.window_bytes = float(event.window_bytes_max)\n",
        "response to loss",
    ),
    "heeds one path alone": (
        "        flow.window_bytes *= params.share\n    answer",
        "        if event.path == 0:\n            flow.window_bytes *= params.share\n    answer",
        "response to loss",
    ),
    "multiplies both ways": (
        GROWTH,
        "    flow.window_bytes += 0.02 * event.acked_bytes\n",
        "meets a larger flow",
    ),
    "starves a newcomer": (
        GROWTH,
        "    if flow.window_bytes > 16.0 * event.segment_bytes or event.rtt_ns < 60_000:\n    "
        + GROWTH,
        "meets a larger flow",
    ),
    "is no number after 2^20 acknowledgments": (
        "    flow.acks += 1\n",
        "    flow.acks += 1\n    if flow.acks > 1_048_576:\n"
        "        flow.window_bytes = math.inf - math.inf\n",
        "lives long",
    ),
}


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.py"
    file.write_text("import math\n" + text)
    return file


def failed(file: Path) -> list[str]:
    """The first check that fails, as a list; empty if all pass."""

    def enough(outcome: Outcome) -> bool:
        return not outcome.passed

    report = check_policy(load(file), Settings(2_000, quick=True), enough=enough)
    return [outcome.check for outcome in report.failures]


def test_owed__a_plain_policy_gives_it_without_promises(tmp_path: Path) -> None:
    assert failed(written(tmp_path, TEXT)) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_owed__what_no_careful_author_would_want_fails(tmp_path: Path, fault: str) -> None:
    good, bad, check = FAULTS[fault]
    assert TEXT.count(good) == 1
    assert failed(written(tmp_path, TEXT.replace(good, bad))) == [check]


def test_owed__what_is_left_out_on_purpose_is_measured_and_passes(tmp_path: Path) -> None:
    good, bad, check = FAULTS["never shrinks on loss"]
    text = TEXT.replace(good, bad)
    text = text.replace("Promises()", 'Promises(without=("loss_response",))')
    report = check_policy(
        load(written(tmp_path, text)),
        Settings(2_000, quick=True),
        enough=lambda outcome: outcome.check == check,
    )
    assert report.passed
    left = report.outcomes[-1]
    assert left.bound == "<= 0.5, left out: without loss_response"
    assert (left.status(strict=False), left.status(strict=True)) == ("warning", "FAILED")
    assert "of what is in flight" in left.measured


def test_owed__a_stated_reason_is_shown_and_passes_under_strict(tmp_path: Path) -> None:
    good, bad, check = FAULTS["never shrinks on loss"]
    text = TEXT.replace(good, bad)
    text = text.replace("Promises()", 'Promises(intrinsic={"loss_response": "only delay counts"})')
    report = check_policy(
        load(written(tmp_path, text)),
        Settings(2_000, quick=True, strict=True),
        enough=lambda outcome: outcome.check == check,
    )
    left = report.outcomes[-1]
    assert left in report.by_design
    assert (left.bound, left.reason) == ("<= 0.5", "only delay counts")


def test_excused__a_failure_with_a_reason_passes_and_one_left_out_warns() -> None:
    measured = "2 copies for 1 lost, up to 2 of one"
    failure = verdict("a copy each", False, measured, "at most 1", "look", name="one_copy")
    assert (failure.fails(strict=False), failure.status(strict=False)) == (True, "FAILED")
    stated = Promises(intrinsic={"one_copy": "RFC 6582 resends a segment for each partial ACK"})
    by_design = excused(stated, failure)
    assert (by_design.status(strict=True), by_design.measured) == ("by design", measured)
    assert excused(Promises(), failure) is failure
    starved = replace(failure, name="newcomer_share")
    left_out = excused(Promises(without=("newcomer_share",)), starved)
    assert (left_out.status(strict=False), left_out.status(strict=True)) == ("warning", "FAILED")
    unnamed = replace(failure, name="")
    assert excused(stated, unnamed) is unnamed  # no file can excuse a mistake


def test_signals__are_compared_with_what_the_code_reads() -> None:
    policy = find("window", "dctcp")
    library = jit(policy)
    assert not as_declared(policy, library).warns
    for declared, words in (
        (("loss", "timeout"), "ecn_segments is read, and ecn is not declared"),
        (("ecn", "loss", "timeout", "chance"), "chance is declared, and none of rand is read"),
        (("ecn", "timeout"), "loss changes answers, and is not declared"),
        (("ecn", "loss", "timeout", "credit"), "credit is no signal of this family"),
    ):
        other = replace(policy, promises=replace(policy.promises, signals=declared))
        assert words in as_declared(other, library).measured


def test_intrinsic__needs_a_known_property_and_a_reason() -> None:
    with pytest.raises(ValueError, match="choose from loss_response"):
        Promises(intrinsic={"speed": "it is slow by nature"})
    for reason in ("", "no"):
        with pytest.raises(ValueError, match="give the reason as text"):
            Promises(intrinsic={"fairness": reason})


def test_outcome__measured_while_a_hook_failed_says_so(tmp_path: Path) -> None:
    silence = "def expired(flow, params, event, result):\n"
    text = TEXT.replace(silence, silence + "    flow.acks //= flow.acks * 0\n")
    assert text != TEXT
    report = check_policy(
        load(written(tmp_path, text)),
        Settings(2_000, quick=True),
        enough=lambda outcome: outcome.check == "hooks run through",
    )
    assert not report.outcomes[-1].passed
    says = {
        one.check: one.measured.endswith("; a hook failed meanwhile") for one in report.outcomes
    }
    assert says["response to timeouts"]
    assert not says["starts"]
    assert not says["takes over"]


def test_names__a_parameter_may_be_called_as_a_function_of_the_file(tmp_path: Path) -> None:
    text = TEXT.replace("share=0.5", "start=0.5").replace("params.share", "params.start")
    text = text.replace("acks", "lost")
    assert failed(written(tmp_path, text)) == []


def test_files__however_odd_are_answered_without_a_traceback(tmp_path: Path) -> None:
    """Policy files with swapped, removed or duplicated lines and words cause no traceback."""
    chance = random.Random(7)
    packages = "__init__.py"  # skipped: these files have a single line
    sources = [f for f in sorted((ROOT / "congestion").glob("*/*.py")) if f.name != packages]
    words = ["0", "-1", "1 << 70", "flow", "params", "event", "None", "'x'", "(", "    ", "nan"]
    answered = 0
    for number in range(150):
        lines = chance.choice(sources).read_text().splitlines()
        for _ in range(chance.randrange(1, 4)):
            at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
            match chance.randrange(4):
                case 0:
                    lines[at], lines[other] = lines[other], lines[at]
                case 1:
                    del lines[at]
                case 2:
                    lines.insert(at, lines[other])
                case _:
                    parts = lines[at].split(" ")
                    parts[chance.randrange(len(parts))] = chance.choice(words)
                    lines[at] = " ".join(parts)
        file = tmp_path / f"odd{number}.py"
        file.write_text("\n".join(lines) + "\n")
        try:
            answered += gates.language(load(file)).passed
        except PolicyError:
            continue
    assert answered > 10  # some changed files are still valid policies
