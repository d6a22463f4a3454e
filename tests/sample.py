"""Splits a parametrized test into a sample for `make test` and the rest for `make test-long`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], ids: Iterable[str], sample: Collection[str]) -> list[Any]:
    """The parameters of a test; those whose ids are not in `sample` are marked long.

    Raises ValueError if a name of `sample` is not an id.
    """
    named = dict(zip(ids, values, strict=True))
    if unknown := set(sample) - set(named):
        raise ValueError(f"not among the ids: {', '.join(sorted(unknown))}")
    return [
        pytest.param(value, id=name, marks=() if name in sample else pytest.mark.long)
        for name, value in named.items()
    ]
