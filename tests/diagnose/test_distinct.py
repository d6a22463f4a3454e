"""Distinct rows are as numpy.unique finds them, whatever the range of the columns."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from transport.diagnose.distinct import distinct, rows_by

SMALL = st.integers(-3, 3)
LARGE = st.one_of(SMALL, st.integers(-(1 << 63), (1 << 63) - 1))


@settings(deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(0, 40))
def test_distinct__as_numpy_finds_them(data: st.DataObject, columns: int, rows: int) -> None:
    def column() -> np.ndarray:
        elements = data.draw(st.sampled_from([SMALL, LARGE]))
        return data.draw(arrays.arrays(np.int64, rows, elements=elements))

    table = np.stack([column() for _ in range(columns)])
    found, number = distinct(*table)
    wanted, inverse = np.unique(table, axis=1, return_inverse=True)
    assert found.tolist() == wanted.tolist()
    assert number.tolist() == inverse.ravel().tolist()


def test_distinct__unsigned_columns() -> None:
    found, number = distinct(np.array([(1 << 64) - 1, 0, 5], np.uint64), np.ones(3, np.uint64))
    assert found[0].tolist() == [0, 5, (1 << 64) - 1]
    assert number.tolist() == [2, 0, 1]


@settings(deadline=None)
@given(arrays.arrays(np.int64, st.integers(0, 40), elements=SMALL))
def test_rows_by__every_row_once_in_order(groups: np.ndarray) -> None:
    found = dict(rows_by(groups))
    assert sorted(found) == np.unique(groups).tolist()
    for one, rows in found.items():
        assert rows.tolist() == np.flatnonzero(groups == one).tolist()
