"""Tests that docs/POLICIES.md explains exactly the existing hooks and fields; checks links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from congestion.api import FAMILIES, PATH_HEAD

PAGE = (Path(__file__).parents[2] / "docs" / "POLICIES.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_policies_page__names_every_hook_and_field(family: str) -> None:
    known = FAMILIES[family]
    section = PAGE.split(f"### {family}\n")[1].split("\n### ")[0].split("\n## ")[0]
    for name in (*known.event.defaults, *known.result.defaults):
        assert f"`{name}`" in section, f"{family}: {name} is not explained"
    explained = set(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))
    for cell in explained:
        for name in re.findall(r"`(\w+)`", cell):
            assert name in known.event.defaults, f"{family}: {name} does not exist"
    for hook in known.hooks:
        assert f"`{hook}`" in PAGE
    for name in PATH_HEAD.defaults:
        assert f"`{name}`" in PAGE


def test_policies_page__links_lead_somewhere() -> None:
    folder = Path(__file__).parents[2] / "docs"
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (folder / target).exists(), target
