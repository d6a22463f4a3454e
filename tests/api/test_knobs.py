"""Tests how Python reads and joins the values of knobs."""

import contextlib
import pickle

import pytest

from transport import Endpoint, KnobValue
from transport.endpoint import knobs
from transport.ground.units import bytes_of, ns_of


def test_units__are_those_that_native_code_writes() -> None:
    values = knobs.in_force()
    for row in knobs.table():
        if row.type == "integer":
            read = ns_of if row.unit == "ns" else bytes_of
            assert read(values[row.field]) >= 0
        if row.type == "keys":
            # Ranges have units, too, and those of times end in min or h.
            times = [key.range.removeprefix("0 or ") for key in row.keys if key.unit == "ns"]
            assert all(ns_of(least) < ns_of(most) for least, most in (t.split("..") for t in times))
            assert list(knobs.keys_of(row.default)) == [key.name for key in row.keys]


def test_merged__joins_the_keys_of_a_knob() -> None:
    usual: dict[str, KnobValue] = {"rdma": {"mode": "uc", "slots": 512}, "paths": 8}
    joined = knobs.merged(usual, {"rdma": "slots=64,placement=direct"}, {"paths": 2})
    assert joined == {"rdma": "mode=uc,slots=64,placement=direct", "paths": "2"}
    assert knobs.merged({"WEFT_RTO": "min=1ms"}, {"WEFT_RTO": "max=1s", "HOME": "/"}) == {
        "WEFT_RTO": "min=1ms,max=1s",
        "HOME": "/",
    }


def test_changed__has_the_keys_that_are_not_at_their_defaults() -> None:
    rows = {row.field: row for row in knobs.table()}
    assert knobs.changed(rows["paths"], "3") == "3"
    assert knobs.changed(rows["rto"], "min=1ms,max=1s") == ""
    assert knobs.changed(rows["rto"], "min=1ms,max=2s") == "max=2s"


def test_endpoint__takes_a_mapping_or_text() -> None:
    keys: dict[str, str | float] = {"loss": 0.5, "paths": "0+3"}
    for given in (keys, "loss=0.5,paths=0+3"):
        with Endpoint(interfaces="lo", fault=given, poll="engine=0") as endpoint:
            assert "FAULTS INJECTED" in endpoint.summary()
    with Endpoint(interfaces="lo", poll="engine=0") as endpoint:
        assert "FAULTS INJECTED" not in endpoint.summary()
    with pytest.raises(knobs.KnobError, match="there is no key 'lots'"):
        Endpoint(interfaces="lo", fault={"lots": 0.5})


def test_errors__of_durations_and_sizes_without_a_unit_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [(row.variable, "", row) for row in knobs.table() if row.type == "integer"]
    rows += [(row.variable, f"{key.name}=", key) for row in knobs.table() for key in row.keys]  # type: ignore[misc]
    refused = 0
    for variable, key, row in rows:
        if row.unit not in ("ns", "bytes"):
            continue
        monkeypatch.setenv(variable, f"{key}9")
        with contextlib.suppress(knobs.KnobError):
            knobs.in_force()
            monkeypatch.delenv(variable)
            continue  # 9 ns or 9 bytes are in range
        refused += 1
        with pytest.raises(knobs.KnobError, match=f"; 9 without a unit is 9 {row.unit}: give "):
            knobs.in_force()
        monkeypatch.delenv(variable)
    assert refused > 8


def test_errors__of_knobs_say_once_which_units_there_are() -> None:
    with pytest.raises(knobs.KnobError) as caught:
        Endpoint(interfaces="lo", peer_timeout={"silence": "20sec"})
    units = "; units: ns, us, ms, s, min or h"
    assert str(caught.value).endswith(units)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    for given in ({"silence": "2h"}, {"silence": "never"}):
        with pytest.raises(knobs.KnobError) as caught:
            Endpoint(interfaces="lo", peer_timeout=given)
        assert "unit" not in str(caught.value)
