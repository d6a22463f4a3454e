"""Tests which addresses count as those of this host."""

import pytest

from transport.ground.addresses import is_own


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("127.0.0.1", True),
        ("240.0.0.2", False),  # of a reserved class: no host has it
        ("localhost", False),  # a name, for which no server is asked
        ("", False),
        ("a" * 80, False),
        ("\0", False),
    ],
)
def test_is_own(address: str, own: bool) -> None:
    assert is_own(address) is own
