"""Presets: named sets of parameters of a policy."""

from typing import Any

import pytest

from congestion.api import record, window_policy
from congestion.registry import find, shipped
from transport import native
from transport.compiler import library
from transport.compiler.emit import fields_text, presets_text
from transport.policies.choice import values_of

PARAMS = record(gain=0.5, segments=4, weight=(1.0, 1.0))


def hook(flow: Any, params: Any, event: Any, result: Any) -> None:
    result.window_bytes = params.gain


def declared(presets: dict[str, dict[str, Any]]) -> Any:
    return window_policy(
        "mine",
        params=PARAMS,
        on_start=hook,
        on_ack=hook,
        on_loss=hook,
        on_timeout=hook,
        presets=presets,
    )


def parsed(text: str) -> dict[str, Any]:
    policy = declared({"paper": {"gain": 0.25, "weight": (0.5, 2.0)}, "plain": {}})
    fields, defaults = fields_text(PARAMS), PARAMS.filled().tobytes()
    given = native.policy_params("mine", fields, defaults, text, presets_text(policy))
    return values_of(fields, given)


def test_preset__sets_its_parameters_and_others_come_after_it() -> None:
    assert parsed("paper") == {"gain": 0.25, "segments": 4, "weight": [0.5, 2.0]}
    assert parsed("paper,segments=1,gain=0.75") == {
        "gain": 0.75,
        "segments": 1,
        "weight": [0.5, 2.0],
    }
    assert parsed("plain") == parsed("") == {"gain": 0.5, "segments": 4, "weight": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "page",
            "'page': choose one of gain, segments, weight; presets: paper, plain",
        ),
        ("gain", "gain needs a value; presets: paper, plain"),
        ("gain=1,paper", "paper is a preset: give at most one, before the parameters"),
        ("paper,paper", "paper is a preset: give at most one, before the parameters"),
        ("paper,gain=x", "gain=x: not a finite number"),
    ],
)
def test_preset__errors_say_what_exists(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parsed(text)


@pytest.mark.parametrize(
    ("presets", "said"),
    [
        ({"paper": {"gian": 1.0}}, "no parameter 'gian'"),
        ({"Paper": {}}, "lower_case"),
        ({"gain": {}}, "is also a parameter"),
    ],
)
def test_preset__a_wrong_declaration_is_refused(presets: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        declared(presets)


@pytest.mark.parametrize("entry", shipped(), ids=lambda one: f"{one.policy.name}")
def test_preset__every_one_that_is_shipped_can_be_chosen(entry: Any) -> None:
    policy = entry.policy
    for name, values in policy.presets.items():
        text = f"{policy.name}:{name}"
        problem = native.policy_problem(policy.family.name, text, [str(native.POLICY_DIRECTORY)])
        assert problem == ""
        fields, defaults = fields_text(policy.params), policy.params.filled().tobytes()
        given = native.policy_params("", fields, defaults, name, presets_text(policy))
        found = values_of(fields, given)
        assert {one: found[one] for one in values} == dict(values)


def test_preset__a_policy_with_one_has_its_parameters_as_defaults() -> None:
    policy = find("window", "nscc")
    paper = policy.with_preset("paper")
    assert paper.params.filled()["target_share"] == 0.75
    assert policy.params.filled()["target_share"] == 1.0
    assert library.jit(paper).params_default == paper.params.filled().tobytes()
    assert paper.hooks == policy.hooks
    with pytest.raises(ValueError, match="nscc has no preset 'papr'; it has: host, paper, fabric"):
        policy.with_preset("papr")
