"""Tests that messages and docs name the extras that pyproject.toml has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

from transport.ground.extras import Extra, install

ROOT = Path(__file__).resolve().parents[2]
FOUND = re.compile(r"weft\[([a-z]+)\]")


def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {*project["optional-dependencies"]} - {"dev"}


def test_extras__are_those_of_the_package() -> None:
    assert {*get_args(Extra)} == extras()
    assert install("trace", "metrics", "trace") == "pip install 'weft[trace,metrics]'"
    assert install("trace") == "pip install 'weft[trace]'"


def test_extras__one_table_lists_all_and_other_pages_name_no_other() -> None:
    deploy = (ROOT / "docs" / "DEPLOY.md").read_text()
    assert {*re.findall(r"^\| `(\w+)` \|", deploy.partition("## Extras")[2], re.M)} == extras()
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        assert {*FOUND.findall(page.read_text())} <= extras(), page


def test_extras__modules_spell_no_command_of_their_own() -> None:
    for folder in ("transport", "congestion"):
        for module in (ROOT / folder).rglob("*.py"):
            text = module.read_text()
            own = re.findall(r"pip install '?(weft\[|duckdb|matplotlib|scipy|jinja2|pyroute)", text)
            assert not own or module.name == "extras.py", module
