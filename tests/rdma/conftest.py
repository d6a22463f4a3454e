"""Fixtures of the tests in the guest: network emulation and its drop counters."""

import json
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.waiting import until

Netem = Callable[..., None]


@pytest.fixture
def netem() -> Iterator[Netem]:
    """Yields a function that sets netem parameters for packets that leave either device."""

    def impose(*words: str) -> None:
        for device in ("va", "vb"):
            command = ["tc", "qdisc", "replace", "dev", device, "root", "netem", "limit", "20000"]
            subprocess.run([*command, *words], check=True)

    yield impose
    for device in ("va", "vb"):
        subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], capture_output=True)


def dropped_packets(device: str) -> int:
    """The number of packets leaving this interface that netem has dropped since it was set."""
    words = ["tc", "-statistics", "-json", "qdisc", "show", "dev", device]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout)[0].get("drops", 0))


def is_active(state: Path) -> bool:
    return "ACTIVE" in state.read_text()


def restore_links() -> None:
    """Sets both links up and restores their neighbour entries, which a link that is down loses."""
    lines = [
        *("link set va up", "link set vb up"),
        "neigh replace 192.0.2.2 lladdr 02:00:00:00:00:02 dev va nud permanent",
        "neigh replace 192.0.2.1 lladdr 02:00:00:00:00:01 dev vb nud permanent",
    ]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    for device in ("rxea", "rxeb"):
        state = Path("/sys/class/infiniband") / device / "ports/1/state"
        until(partial(is_active, state), f"{device} is not active")
