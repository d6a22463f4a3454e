"""The options and output columns that benchmarks share: sizes, option groups, units.

Option names and column heads are those of nccl-tests and perftest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.markup import escape

from bench.lib import labs
from bench.lib.placement import Placement, read_places
from transport.cli.options import CSV, HTML, FiniteRange, OutputFile, output_file
from transport.cli.output import json_option, print_table
from transport.cli.packages import PAGES, PLOTS, need_packages
from transport.ground.units import percent

if TYPE_CHECKING:
    from transport.lab import Lab, LabModel

SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
SIZE_BYTES_MAX = 1 << 30
SWEEP_MAX = 64

# Name and heading of a unit -> bytes per second in one unit.
UNITS = {"GB/s": 1e9, "Gb/s": 1e9 / 8, "MiB/s": float(1 << 20)}

Function = TypeVar("Function", bound=Callable[..., Any])
Columns = Sequence[tuple[str, str]]  # (key of a row, heading of the column)

PERFTEST: Columns = (
    ("size_bytes", "#bytes"),
    ("iterations", "#iterations"),
    ("peak_bytes_per_s", "BW peak"),
    ("rate_bytes_per_s", "BW average"),
    ("messages_per_s", "MsgRate[Mpps]"),
)
LATENCY: Columns = (
    ("size_bytes", "#bytes"),
    ("iterations", "#iterations"),
    ("t_min_ns", "t_min[usec]"),
    ("t_max_ns", "t_max[usec]"),
    ("t_typical_ns", "t_typical[usec]"),
    ("t_avg_ns", "t_avg[usec]"),
    ("t_99_ns", "99%[usec]"),
)
NCCL_TESTS: Columns = (
    ("size_bytes", "size(B)"),
    ("count", "count(elements)"),
    ("time_ns", "time(us)"),
    ("algbw_bytes_per_s", "algbw"),
    ("busbw_bytes_per_s", "busbw"),
)
# The last columns of every table; `worst` is the first measure's value in its worst run.
CHECKED: Columns = (
    ("worst", "worst run"),
    ("spread", "spread"),
    ("cpu_share", "cpu"),
    ("others_share", "others"),
    ("wrong", "#wrong"),
    ("note", ""),
)


class Size(click.ParamType[int]):
    """A number of bytes: 4096, 4K, 1M, 1G; units are powers of two, as in nccl-tests."""

    name = "size"

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]+)([kKmMgG]?)(?:i?[bB])?", str(value))
        if match is None:
            self.fail(f"{value!r} is not a size; write 4096, 4K, 1M or 1G", param, ctx)
        number = int(match[1]) * SUFFIXES[match[2].lower()]
        if not self._least <= number <= SIZE_BYTES_MAX:
            self.fail(f"{value} is not between {self._least} B and 1G", param, ctx)
        return number


def sweep(minimum: int, maximum: int, factor: int) -> list[int]:
    """Sizes from the smallest to the largest, each `factor` times the previous one."""
    if maximum < minimum:
        raise click.UsageError(f"--maxbytes {maximum} is less than --minbytes {minimum}")
    sizes = [minimum]
    while sizes[-1] * factor <= maximum:
        sizes.append(sizes[-1] * factor)
        if len(sizes) > SWEEP_MAX:
            raise click.UsageError(f"more than {SWEEP_MAX} sizes; take a larger --stepfactor")
    return sizes


def _grouped(options: Sequence[Callable[[Function], Function]]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


RANKS_MAX = 32


def collective_options(
    minbytes: str, maxbytes: str, least: int = 1
) -> Callable[[Function], Function]:
    """The options -b -e -f -n -w of nccl-tests, and -N for the number of ranks."""
    size = Size(least)
    return _grouped(
        [
            click.option("-b", "--minbytes", type=size, default=minbytes, show_default=True),
            click.option("-e", "--maxbytes", type=size, default=maxbytes, show_default=True),
            click.option(
                *("-f", "--stepfactor"),
                type=click.IntRange(2, 1 << 20),
                default=4,
                show_default=True,
                help="Factor between consecutive sizes.",
            ),
            click.option(
                *("-n", "--iters"),
                type=click.IntRange(1, 1_000_000),
                default=20,
                show_default=True,
                help="Timed iterations per size.",
            ),
            click.option(
                *("-w", "--warmup_iters"),
                type=click.IntRange(0, 1_000_000),
                default=5,
                show_default=True,
                help="Untimed iterations before the timed ones.",
            ),
            click.option(
                *("-N", "--ranks"),
                type=click.IntRange(2, RANKS_MAX),
                default=4,
                show_default=True,
                help="Processes.",
            ),
        ]
    )


class Rate(click.ParamType[int]):
    """A rate as in lab files, "1 Gb/s", converted to bytes per second."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from transport.lab import LabModelError
        from transport.lab.model import LINK_KEYS, check, rate_of

        if isinstance(value, int):
            return value
        try:
            rate = rate_of("rate", value)
            check("rate", LINK_KEYS["rate"], rate)
        except LabModelError as error:
            self.fail(str(error), param, ctx)
        return rate


PATH_RATE = click.option(
    "--path-rate",
    type=Rate(),
    default="1 Gb/s",
    show_default=True,
    help="Rate of each of the lab's four paths, without --lab.",
)


def flow_options(size: str = "1M", duration_s: float = 2.0) -> Callable[[Function], Function]:
    """The options -s and -D of perftest."""
    return _grouped(
        [
            click.option(
                *("-s", "--size"),
                type=Size(),
                default=size,
                show_default=True,
                help="Bytes per message.",
            ),
            click.option(
                *("-D", "--duration", "duration_s"),
                type=FiniteRange(0.05, 3_600),
                default=duration_s,
                show_default=True,
                help="Timed seconds.",
            ),
            click.option(
                *("--warmup", "warmup_s"),
                type=FiniteRange(0, 60),
                default=0.5,
                show_default=True,
                help="Untimed seconds before the timed ones.",
            ),
        ]
    )


@dataclass(frozen=True)
class Common:
    """The options that all studies share."""

    repeats: int
    only: tuple[str, ...]
    units: str
    places: tuple[Placement, ...]
    lab: Lab | None
    json_path: str | None
    csv_path: Path | None
    plot_path: Path | None
    html_path: Path | None


def _set_tiny(values: dict[str, Any]) -> Callable[[click.Context, click.Parameter, bool], None]:
    def callback(ctx: click.Context, _: click.Parameter, chosen: bool) -> None:
        if chosen:
            ctx.default_map = {**(ctx.default_map or {}), "repeats": 1, **values}

    return callback


def study_options(*, many_labs: bool = False, **tiny: Any) -> Callable[[Function], Function]:
    """Options for rounds, contenders, places, units and files; `tiny`: values that --tiny sets."""
    what = "Lab files, one after the other" if many_labs else "A lab file"
    return _grouped(
        [
            click.option(
                "--repeats",
                type=click.IntRange(1, 1_000),
                default=3,
                show_default=True,
                help="Interleaved rounds.",
            ),
            click.option(
                "--only", multiple=True, help="Contenders by name; by default the usual ones."
            ),
            click.option(
                "--units", type=click.Choice(list(UNITS)), default="GB/s", show_default=True
            ),
            click.option(
                *("--place", "place_path"),
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="JSON list of places (name, address, interfaces, namespace, cores).",
            ),
            click.option(
                *("--lab", "lab_file"),
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                multiple=many_labs,
                help=f"{what}: each process runs on its own host, in order; needs root.",
            ),
            click.option(
                "--tiny",
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_set_tiny(tiny),
                help="A run of about a second, to test that it works.",
            ),
            json_option,
            click.option("--csv", "csv_path", type=output_file(*CSV), help="One line per row."),
            click.option("--plot", "plot_path", type=output_file(), help="FILE.png or FILE.svg."),
            click.option(
                "--html", "html_path", type=output_file(*HTML), help="A report in one file."
            ),
        ]
    )


def need_drawing(plot_path: Path | None, html_path: Path | None) -> None:
    """ClickException if the files need packages that are not installed; it names all extras."""
    files = {"--plot": (plot_path, PLOTS), "--html": (html_path, PAGES)}
    given = {option: package for option, (path, package) in files.items() if path is not None}
    need_packages(" and ".join(given), *given.values())


def common(values: dict[str, Any], lab: LabModel | None = None) -> Common:
    """Makes a Common from the keyword arguments that study_options() adds to a command.

    `lab`: the lab to use without --lab; None: loopback.
    """
    need_drawing(values["plot_path"], values["html_path"])
    given = dict(values)
    path, lab_file = given.pop("place_path"), given.pop("lab_file")
    if path is not None and (lab_file is not None or lab is not None):
        raise click.UsageError("--place cannot be combined with a lab, which makes its own places")
    places = tuple(read_places(path)) if path is not None else ()
    model = labs.read(lab_file) if lab_file is not None else lab
    if lab is not None and model is not None and (model.leaves < 2 or model.spines < 2):
        raise click.UsageError("--lab: this bench needs two leaves with hosts, and two spines")
    built = labs.build(model) if model is not None else None
    if built is not None:
        places = labs.places(built)
    return Common(**given, places=places, lab=built)


def show(key: str, value: Any, units: str = "GB/s") -> str:
    """A value of a row as text; its unit is the end of its key, before _min and _max."""
    key = re.sub(r"_(min|max)$", "", key)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(show(key, one, units) for one in value)
    if key.endswith("messages_per_s"):
        return f"{value / 1e6:.6f}"
    if key.endswith("bytes_per_s") and not key.endswith("gbytes_per_s"):
        return f"{value / UNITS[units]:.3f}" if units != "MiB/s" else f"{value / UNITS[units]:.1f}"
    if key.endswith("_ns"):
        return f"{value / 1e3:.2f}"
    if key.endswith(("share", "spread")):
        return percent(value, 0)
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1_000 else f"{value:.0f}"
    return str(value)


def table(columns: Columns, rows: Iterable[Sequence[str]]) -> None:
    """Prints a table with escaped heads, because rich would take [usec] for a style."""
    print_table([escape(title) for _, title in columns], rows)


# Ends of keys, and of those of old results -> unit of the values that show() writes.
_UNIT_OF = (
    *(("messages_per_s", "Mpps"), ("gbytes_per_s", "GB/s"), ("_s_per_gbyte", "s/GB")),
    *(("_ns", "usec"), ("_us", "usec"), ("_ms", "ms"), ("_bytes", "bytes")),
    *(("algbw", "GB/s"), ("busbw", "GB/s")),
)


def unit_of(key: str, units: str) -> str:
    """The unit of a key's values as show() writes them; "" if they have none, or have it."""
    key = re.sub(r"_(min|max)$", "", key)
    ends = next(((end, unit) for end, unit in _UNIT_OF if key.endswith(end)), None)
    if ends is not None:
        return ends[1]
    return units if key.endswith("bytes_per_s") else ""


def heading(key: str, title: str, units: str) -> str:
    """The title of a column, with the unit that show() uses, if it has no unit."""
    unit = unit_of(key, units)
    if not unit or "[" in title or "(" in title or title.startswith("#"):
        return title
    least = re.search(r"_(min|max)$", title)
    stem = title.removesuffix(least[0]) if least else title
    for end in (*(f"_{end.lstrip('_')}" for end, _ in _UNIT_OF), "_bytes_per_s"):
        stem = stem.removesuffix(end)
    stem = "rate" if stem.endswith("bytes_per_s") else stem
    return f"{stem}{least[0] if least else ''}[{unit}]"


__all__ = [
    "CHECKED",
    "LATENCY",
    "NCCL_TESTS",
    "PATH_RATE",
    "PERFTEST",
    "UNITS",
    "Columns",
    "Common",
    "OutputFile",
    "Size",
    "collective_options",
    "common",
    "flow_options",
    "heading",
    "show",
    "study_options",
    "sweep",
    "table",
    "unit_of",
]
