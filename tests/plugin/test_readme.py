"""Tests that every point of README.md names a test, and that all named tests exist."""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from . import test_groups, test_plugin, test_points, test_trouble

ROW = re.compile(r"^\| (\d+) \| .+ \| (.+) \| ([\d, -]+|any) \|$", re.MULTILINE)
POINTS = 31


def parameters(function: object) -> dict[str, list[object]]:
    """The parametrize values of a test function, by parameter name."""
    marks = getattr(function, "pytestmark", [])
    return {mark.args[0]: list(mark.args[1]) for mark in marks if mark.name == "parametrize"}


def played() -> dict[str, set[int]]:
    """The interface versions with which each scenario and each test function runs."""
    found: dict[str, set[int]] = defaultdict(set)
    for module in (test_groups, test_plugin, test_points, test_trouble):
        for name, function in vars(module).items():
            if not name.startswith("test_"):
                continue
            values = parameters(function)
            found[name] |= set()
            for version, scenario in product(
                values.get("version", []), [name, *values.get("scenario", [])]
            ):
                assert isinstance(version, int)
                found[str(scenario)].add(version)
    return found


def versions_of(text: str) -> set[int]:
    """Parses "8-12", "8, 12" or "any" to a set of versions; "any": the test has no version."""
    if text == "any":
        return set()
    if "-" in text:
        first, last = text.split("-")
        return set(range(int(first), int(last) + 1))
    return {int(part) for part in text.split(",")}


def rows() -> Iterator[tuple[int, list[str], set[int]]]:
    text = (Path(__file__).parent / "README.md").read_text()
    table = ROW.findall(text)
    assert len(table) == len(re.findall(r"^\| \d", text, re.MULTILINE)), "a row does not match"
    for point, names, versions in table:
        yield int(point), re.findall(r"`(\w+)`", names), versions_of(versions)


def test_readme__names_tests_that_exist_for_every_point() -> None:
    known = played()
    listed = list(rows())
    assert {point for point, _, _ in listed} == set(range(1, POINTS + 1))
    for point, names, versions in listed:
        assert names, f"point {point} names no test"
        for name in names:
            assert name in known, f"point {point}: no test runs {name}"
            assert versions <= known[name], f"point {point}: {name} runs with {known[name]}"
