"""Tests minimum cuts."""

from itertools import product

import pytest
from hypothesis import given, strategies as st

from transport.sim.narrowest import narrowest


@pytest.mark.parametrize(
    ("links", "cut"),
    [
        ([(0, 1, 5)], [0]),
        ([(0, 1, 5), (1, 2, 3)], [1]),
        ([(0, 2, 5), (0, 2, 3)], [0, 1]),
        # Both routes have a slow link, at different hops.
        ([(0, 1, 9), (1, 2, 9), (1, 3, 1), (2, 4, 1), (3, 4, 9), (4, 5, 9)], [2, 3]),
        ([(0, 1, 5), (3, 2, 3)], []),
    ],
)
def test_narrowest__links(links: list[tuple[int, int, int]], cut: list[int]) -> None:
    assert narrowest(links, 0, max(other for _, other, _ in links)) == cut


LINKS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=10
)


@given(LINKS)
def test_narrowest__no_other_cut_is_smaller(links: list[tuple[int, int, int]]) -> None:
    links = [one for one in links if one[0] != one[1]]
    found = sum(links[number][2] for number in narrowest(links, 0, 4))
    sides = (
        {0, *(node for node, inside in zip((1, 2, 3), bits, strict=True) if inside)}
        for bits in product((False, True), repeat=3)
    )
    assert found == min(
        sum(rate for one, other, rate in links if one in side and other not in side)
        for side in sides
    )
