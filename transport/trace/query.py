"""Runs SELECT statements of a user on a store."""

from __future__ import annotations

from typing import Any

from transport.errors import InvalidArgumentError
from transport.trace.store import Store


class QueryError(InvalidArgumentError):
    """The statement is not a SELECT, or DuckDB refuses it."""


def select(store: Store, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The headings and rows of a SELECT statement; refuses every other statement.

    The statement, and all later ones of the store, can read no other files.
    """
    import duckdb

    store.confine()
    try:
        statements = duckdb.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise QueryError("give a single SELECT statement: a trace cannot be changed")
        found = store.database.execute(sql)
        return [column[0] for column in found.description or ()], found.fetchall()
    except duckdb.Error as error:
        raise QueryError(f"the query failed: {error}") from None
