"""Tests a peer that writes into the shared memory what no peer writes: only its connection ends."""

import re

import pytest

from tests.api.support import PATIENCE_S, Log, child, line, running
from tests.local import hostile
from tests.local.support import (
    MODES,
    WAYS,
    alive,
    dialled,
    held,
    is_local,
    lines,
    returns_to,
    served,
    variables_of,
)

SEEDS = 50


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("attack", [one.__name__ for one in hostile.ATTACKS])
def test_memory__garbage_ends_only_the_connection_that_has_it(attack: str, mode: str) -> None:
    with (
        served("suffers", mode=mode, WEFT_LOG_LEVEL="error") as (victim, handle),
        dialled(handle, mode) as other,
    ):
        other.send(b"exchange", timeout_s=PATIENCE_S)
        alive(other)
        before = held(victim.pid)
        arguments = (handle.hex(), attack, "0", str(SEEDS))
        attacker = child(*arguments, module="tests.local.hostile", **variables_of(mode))
        with running(attacker):
            outcomes = [one.split() for one in lines(victim, SEEDS)]
            alive(other, seed=3)
            out, errors = attacker.communicate(timeout=PATIENCE_S)
        assert out.strip() == "done", errors
        assert {guards for _, guards in outcomes} == {"intact"}
        assert is_local(other)
        returns_to(before, victim.pid)
        with dialled(handle, mode) as another:
            another.send(b"exchange", timeout_s=PATIENCE_S)
            alive(another)
        assert victim.poll() is None


# What the log says. With WEFT_LOCAL=ring, and where the kernel forbids it, no message may be lent.
SAID = {
    "writes_too_far": r"produced is \d{13}, and can be \d+ to \d+ in steps of 16",
    "lends_what_it_lacks": "it lent 4096 bytes at 0x10 that cannot be read: Bad address"
    "|the lent bit of a head is 1, and can be 0",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("attack", [one.__name__ for one in hostile.SINGLE])
def test_log__names_who_broke_which_rule(attack: str, mode: str) -> None:
    with served("suffers", mode=mode) as (victim, handle):
        arguments = (handle.hex(), attack, "0", "1")
        with running(child(*arguments, module="tests.local.hostile", WEFT_LOCAL=mode)) as attacker:
            said = Log(victim).take("broke the rules")
            assert line(victim) == "connection_closed intact"
        assert f", process {attacker.pid} of this host," in said
        assert re.search(SAID[attack], said), said
