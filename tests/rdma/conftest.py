"""What the tests of the transport share in the guest: what happens to packets, both ways.

Never touches a network outside the guest: the fixture is asked for by tests that are skipped there.
"""

import subprocess
from collections.abc import Callable, Iterator

import pytest

Netem = Callable[..., None]


@pytest.fixture
def netem() -> Iterator[Netem]:
    """Sets, in netem's own words, what happens to what leaves either device."""

    def impose(*words: str) -> None:
        for device in ("va", "vb"):
            command = ["tc", "qdisc", "replace", "dev", device, "root", "netem", "limit", "20000"]
            subprocess.run([*command, *words], check=True)

    yield impose
    for device in ("va", "vb"):
        subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], capture_output=True)
