"""Hashes and reads recorded results."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import click

HASH = "sha256"
TIMESTAMPS = ("date",)

Config = dict[str, Any]


def result_hash(found: Config) -> str:
    """SHA-256 of a result as canonical JSON, without its hash and its timestamps."""
    kept = {key: value for key, value in found.items() if key != HASH}
    environment = kept.get("environment")
    if isinstance(environment, dict):
        kept["environment"] = {k: v for k, v in environment.items() if k not in TIMESTAMPS}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(found: Config) -> Config:
    """The result with its hash."""
    return {**found, HASH: result_hash(found)}


def seal_state(found: Config) -> str:
    """Whether a result matches its hash: `whole`, `changed`, or `none` for one without a hash."""
    if HASH not in found:
        return "none"
    return "whole" if found[HASH] == result_hash(found) else "changed"


def read(path: Path) -> Config:
    """Reads a recorded result; UsageError if the file is no result."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"cannot read {path}: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("bench"), str):
        raise click.UsageError(f"{path} is not a result of a benchmark: it names no bench")
    rows = found.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise click.UsageError(f"{path} is not a result of a benchmark: it has no rows")
    return found
