"""Names the extras of weft that install optional packages; pyproject.toml lists the packages."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from itertools import combinations
from typing import Literal, get_args

Extra = Literal[
    "policies",
    "gpu",
    "plots",
    "lab",
    "sweep",
    "chakra",
    "trace",
    "metrics",
    "otlp",
    "diagnose",
    "estimate",
]

# Extra -> the modules that its packages bring, as they are imported.
MODULES: dict[Extra, tuple[str, ...]] = {
    "policies": ("numba", "llvmlite", "ziglang"),
    "gpu": ("cupy",),
    "plots": ("matplotlib", "jinja2"),
    "lab": ("pyroute2",),
    "sweep": ("distributed",),
    "chakra": ("google.protobuf",),
    "trace": ("duckdb", "jinja2"),
    "metrics": ("prometheus_client", "tornado"),
    "otlp": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "diagnose": ("duckdb", "pynvml"),
    "estimate": ("scipy", "duckdb", "matplotlib", "jinja2"),
}


def install(*extras: Extra) -> str:
    """The command that installs extras, for messages about a missing package."""
    return f"pip install 'weft[{','.join(dict.fromkeys(extras))}]'"


def absent(modules: Iterable[str]) -> list[str]:
    """Those of the modules that are not installed, each once."""
    return [one for one in dict.fromkeys(modules) if not _is_there(one)]


def extras_for(modules: Iterable[str]) -> tuple[Extra, ...]:
    """The extras that bring all of the modules, with as few other packages as possible.

    KeyError if no extra brings one of them.
    """
    wanted = set(modules)
    known: tuple[Extra, ...] = get_args(Extra)
    useful = [one for one in known if wanted & {*MODULES[one]}]
    choices = [some for count in range(len(useful) + 1) for some in combinations(useful, count)]
    enough = [some for some in choices if wanted <= _brought(some)]
    if not enough:
        raise KeyError(f"no extra brings one of {', '.join(sorted(wanted))}")
    return min(enough, key=lambda some: (len(_brought(some)), len(some)))


def _brought(extras: Iterable[Extra]) -> set[str]:
    return {module for one in extras for module in MODULES[one]}


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a package above it is absent
        return False
