"""Tests that docs/TRACING.md describes every table and command of traces."""

import re
from pathlib import Path

from transport.cli.trace import command
from transport.trace import new_store
from transport.trace.tables import TABLES, markdown

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "TRACING.md").read_text()


def test_docs__have_every_table_and_column() -> None:
    """If this fails, replace the section Tables by transport.trace.tables.markdown()."""
    assert markdown() in PAGE


def test_docs__list_every_command() -> None:
    assert set(re.findall(r"^\| `weft trace (\w+)", PAGE, re.MULTILINE)) == set(command.commands)


def test_tables__of_a_store_are_those_described() -> None:
    with new_store() as store:
        for table, columns in TABLES.items():
            names = [name for name, *_ in store.rows(f"DESCRIBE {table}")]
            assert names == [column.name for column in columns]
