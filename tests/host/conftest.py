"""The lab of two hosts that tests of `weft doctor --serve` and `--peer` share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.support import reason_to_skip, unique
from transport.lab import Lab, LabModel, Link


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    rate = Link(rate_bytes_per_s=62_500_000, mtu_bytes=1_500)
    with Lab(LabModel(spines=1, uplinks=rate, host_links=rate), name=unique("doctor")) as one:
        yield one
