"""Names the extra of weft that installs an optional package; pyproject.toml lists the packages."""

from __future__ import annotations

from typing import Literal

Extra = Literal[
    "policies", "gpu", "plots", "lab", "sweep", "trace", "metrics", "otlp", "diagnose", "estimate"
]


def install(*extras: Extra) -> str:
    """The command that installs extras, for messages about a missing package."""
    return f"pip install 'weft[{','.join(dict.fromkeys(extras))}]'"
