"""Tests when lost packets are evidence of a lossy place."""

from pathlib import Path

from tests.diagnose.support import as_real, traced
from transport.diagnose.diagnosis import judged
from transport.diagnose.facts import facts_of
from transport.diagnose.settings import Settings
from transport.plan import routes
from transport.trace import open_store


def test_losses__of_a_real_job_must_be_seen_in_every_window(tmp_path: Path) -> None:
    """Two windows prove a lossy NIC in a simulation, whose hosts have no sockets that overflow.

    The routes name no addresses, as those that a user writes for a real job may.
    """
    short = {
        "kind": "lossy_link",
        "link": "leaf1-host13",
        "at_ns": 3_600_000,
        "until_ns": 5_500_000,
        "loss": 0.25,
    }
    known = routes.read(traced(tmp_path, short) / routes.FILE)
    assert not known.addresses
    with open_store(tmp_path) as store:
        facts = facts_of(store)
    for one, certain in ((facts, True), (as_real(facts), False)):
        first = judged(one, [], Settings(routes=known), []).findings[0]
        assert (first.kind, first.place.name) == ("network_loss", "NIC of rank 13")
        assert first.certain == certain
