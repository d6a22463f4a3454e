"""Click parameter types; click names the option when a value is wrong."""

from __future__ import annotations

import math
import os
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from transport.ground import created
from transport.ground.regular import refused

COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
SEED = click.IntRange(0, (1 << 63) - 1)
SEEDS_MAX = 10_000


class FiniteRange(click.FloatRange):
    """Parses a number in a range; refuses nan and inf."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class PercentType(FiniteRange):
    """Parses a percentage in a range, such as 5% or 5; the result is the share, 0.05."""

    name = "percentage"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        return super().convert(str(value).strip().removesuffix("%"), param, ctx) / 100


class CountType(click.ParamType[int]):
    """Parses a whole number such as 2K, 350M, 1.5B or 15e12; units are decimal."""

    name = "count"

    def __init__(self, most: int = 10**18) -> None:
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[0-9]{1,2})?"
        match = re.fullmatch(rf"({number})\s*([kmbgt]?)", str(value).strip().lower())
        if match is None:
            self.fail(f"{value}: expected a number such as 2K, 4M, 1T or 15e12", param, ctx)
        found = round(Fraction(match[1]) * COUNTS[match[2]])
        if not 1 <= found <= self._most:
            self.fail(f"{value}: must be 1 to {self._most:g}", param, ctx)
        return found


class TimeType(click.ParamType[int]):
    """Parses a time such as "5 ms"; the result is in ns."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from transport.ground.units import ns_of

        try:
            found = ns_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not 0 < found <= 1 << 50:
            self.fail(f"{value}: must be more than 0 and at most 13 days", param, ctx)
        return found


class SecondsType(FiniteRange):
    """Parses a time in a range: a number of seconds such as 2 or 0.5, or one with a unit, 500ms.

    The result, and the range, are in seconds.
    """

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from transport.ground.units import ns_of

        if isinstance(value, str) and re.search("[a-z]$", value.strip()):
            try:
                value = ns_of(value) / 1e9
            except ValueError:
                said = f"{value}: expected seconds, or a time such as 500ms or 2min"
                self.fail(said, param, ctx)
        return super().convert(value, param, ctx)


class InputFile(click.Path):
    """A regular file that exists; its value is a Path. Pipes and devices are refused, which never
    end. dir_okay: folders are taken, too.
    """

    def __init__(self, *, dir_okay: bool = False) -> None:
        super().__init__(path_type=Path, exists=True, dir_okay=dir_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not (self.dir_okay and found.is_dir()) and (why := refused(found.stat().st_mode)):
            self.fail(f"cannot read {found}: {why}", param, ctx)
        return found


class OutputFile(click.Path):
    """A file that can be written; its folder is checked before the work begins.

    suffixes: the suffixes of the format that is written; other suffixes are refused.
    """

    def __init__(self, *suffixes: str, **options: Any) -> None:
        super().__init__(**options)
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        out = super().convert(value, param, ctx)
        file = Path(os.fsdecode(out))
        if os.fsdecode(out) == "-":
            if self.allow_dash:
                return out
            self.fail("- (stdout) is not supported here: give a file name", param, ctx)
        if not file.name:
            self.fail("the name is empty: give the name of a file", param, ctx)
        if self._suffixes and file.suffix and file.suffix.lower() not in self._suffixes:
            known = " or ".join(self._suffixes)
            self.fail(f"{file}: wrong suffix for this format: end the name in {known}", param, ctx)
        try:
            if not file.parent.is_dir():
                self.fail(f"cannot write {file}: there is no folder {file.parent}", param, ctx)
            if not file.exists() and (why := created.refusal(file.parent)):
                said = f"cannot write {file}: no file can be created in {file.parent}: {why}"
                self.fail(said, param, ctx)
        except OSError as error:
            self.fail(f"cannot write {file}: {error.strerror}", param, ctx)
        return out


class OutputFolder(click.Path):
    """A folder for files that are written; its value is a Path."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty: give the name of a folder", param, ctx)
        return super().convert(value, param, ctx)


CSV, HTML, JSON = (".csv", ".txt"), (".html", ".htm"), (".json", ".jsonl", ".txt")


def output_file(*suffixes: str) -> OutputFile:
    """An OutputFile whose value is a Path."""
    return OutputFile(*suffixes, dir_okay=False, writable=True, path_type=Path)


def owner(text: str) -> int:
    """Parses which flow or peer a decision is for: a recorded number, or ENGINE:INDEX."""
    match = re.fullmatch(r"(?:([0-9]+):)?([0-9]+)", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is neither a number nor ENGINE:INDEX.")
    engine, index = int(match[1] or 0), int(match[2])
    if engine > 0xFF or index >> (24 if match[1] else 32):
        raise click.BadParameter(f"{text}: engines are 0 to 255, indices less than 2^24.")
    return engine << 24 | index


def owner_text(owner: int) -> str:
    """The number of a flow or peer in the syntax of --owner; engine 0 is omitted."""
    return f"{owner >> 24}:{owner & 0xFFFFFF}" if owner >> 24 else str(owner)


class SeedsType(click.ParamType[list[int]]):
    """Parses a list of seeds such as "1-10" or "1,5,9"."""

    name = "seeds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        found: list[int] = []
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*([0-9]{1,18})(?:-([0-9]{1,18}))?\s*", part)
            if match is None:
                self.fail(f"{part!r} is not a list of seeds: write 1-10 or 1,5,9", param, ctx)
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first or last - first >= SEEDS_MAX:
                self.fail(
                    f"{part}: write the smaller seed first, and {SEEDS_MAX} seeds at most",
                    param,
                    ctx,
                )
            found += range(first, last + 1)
        return list(dict.fromkeys(found))
