"""Two hosts joined by a wire, for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.xdp.support import Wire, reason_to_skip, wired


@pytest.fixture
def wire() -> Iterator[Wire]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with wired() as one:
        yield one
