"""Tests how Python reads and joins the values of knobs."""

import pytest

from transport import Endpoint, KnobValue, knobs


def test_amount__has_a_unit() -> None:
    texts = {"0": 0, "1500": 1_500, "20ms": 20_000_000, "1min": 60 * 10**9, "64MiB": 64 << 20}
    assert {text: knobs.amount(text) for text in texts} == texts
    for text in ("", "ms", "1.5s", "10 ms", "20sec", "-1"):
        with pytest.raises(ValueError, match="not a whole number"):
            knobs.amount(text)


def test_amount__reads_what_is_in_force() -> None:
    values = knobs.in_force()
    for row in knobs.table():
        if row.type == "integer":
            assert knobs.amount(values[row.field]) >= 0
        if row.type == "keys":
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
    with Endpoint(interfaces="lo", fault={"loss": 0.5, "paths": "0+3"}, poll="engine=0"):
        pass
