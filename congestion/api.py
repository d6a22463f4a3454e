"""Defines what a policy is: the records that it reads and writes, its hooks and its declaration.

A hook is a plain function over records. Records hold int64 and float64 only, so that one file gives
the same numbers interpreted and compiled. Flow, path and port records start at zero; params start
at their defaults; a result starts with the values that apply if the hook does not change them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from congestion.promises import NOTHING, Promises

MAX_RECORD_BYTES = 4096  # kMaxRecordBytes in native/policy/policy.h
MAX_PATHS = 256  # kMaxPaths in native/policy/policy.h
MAX_HOPS = 8  # ports whose telemetry an acknowledgment brings; kMax in native/wire/hop_records.h
MAX_NAME_CHARS = 47  # length of Descriptor::name in native/policy/policy.h, less the final zero

# Kinds of a path event: a request for a path (PICK), or feedback about a path.
PICK, GOOD, ECN, NACK, TIMEOUT = 0, 1, 2, 3, 4

Hook = Any  # a plain function; not typed as Callable, because its __code__ is read
Value = int | float | type | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True)
class Record:
    """An aligned layout of int64 and float64 fields, with their initial values."""

    dtype: np.dtype[Any]
    defaults: Mapping[str, Any]

    @property
    def size_bytes(self) -> int:
        return int(self.dtype.itemsize) if self.dtype.names else 0

    def zeros(self, count: int = 1) -> np.ndarray[Any, Any]:
        return np.zeros(count, self.dtype)

    def filled(self) -> np.ndarray[Any, Any]:
        """A record with the default values."""
        one = np.zeros(1, self.dtype)
        for name, value in self.defaults.items():
            one[name] = value
        return one


def _field(name: str, value: Value) -> tuple[tuple[Any, ...], Any]:
    if not name.isidentifier() or name != name.lower() or name.startswith("_"):
        raise ValueError(f"record field {name!r}: write it in lower_case, unit last")
    if value is int or value is float:
        return (name, "i8" if value is int else "f8"), value()
    if type(value) is int or type(value) is float:
        return (name, "i8" if type(value) is int else "f8"), value
    if isinstance(value, tuple) and value and len({type(item) for item in value}) == 1:
        (_, code), _first = _field(name, value[0])
        if isinstance(value[0], int | float):
            return (name, code, (len(value),)), value
    raise TypeError(
        f"record field {name!r}: give int, float, a number, or a tuple of numbers of one type; "
        f"not {value!r}"
    )


def record(**fields: Value) -> Record:
    """A record of named fields: `record(window_bytes=float, cuts=int)` or with defaults.

    An int gives an int64 field, a float gives a float64 field, and a tuple gives an array field.
    """
    described = [_field(name, value) for name, value in fields.items()]
    dtype = np.dtype([spec for spec, _ in described], align=True)
    if dtype.itemsize > MAX_RECORD_BYTES:
        raise ValueError(f"the record has {dtype.itemsize} bytes: at most {MAX_RECORD_BYTES}")
    return Record(dtype, MappingProxyType({spec[0]: start for spec, start in described}))


EMPTY = record()
# Named sets of parameters: what differs from the defaults.
Presets = Mapping[str, Mapping[str, Any]]


def _layout(integers: str, floats: str = "") -> Record:
    return record(**dict.fromkeys(integers.split(), int), **dict.fromkeys(floats.split(), float))


def _grown(layout: Record, integers: str) -> Record:
    """A layout with integer fields that were added later: at the end, as old libraries need it."""
    return record(**dict(layout.defaults), **dict.fromkeys(integers.split(), int))


# What follows is there only for a policy that reads some of it.
_HOP_ARRAYS = ("hop_queue_bytes", "hop_tx_bytes", "hop_timestamp_ns", "hop_link_bytes_per_s")
HOP_FIELDS = ("hops", *_HOP_ARRAYS, "one_way_ns")
# The core computes these only for a policy that reads one of them.
DELIVERY_FIELDS = ("delivery_bytes_per_s", "delivery_app_limited")
_WINDOW_EVENT = _grown(
    _layout(
        "now_ns kind path segment_bytes rtt_ns rtt_min_ns srtt_ns ack_delay_ns acked_bytes "
        "acked_segments ecn_segments lost_bytes lost_segments inflight_bytes delivered_bytes "
        "window_bytes window_bytes_max app_limited link_bytes_per_s",
        "rand hint_window_bytes",
    ),
    "trimmed_segments message_bytes message_left_bytes sent_bytes sent_segments",
)
WINDOW_EVENT = record(
    **dict(_WINDOW_EVENT.defaults),
    delivery_bytes_per_s=float,
    delivery_app_limited=int,
    hops=int,
    **dict.fromkeys(_HOP_ARRAYS, (0,) * MAX_HOPS),
    one_way_ns=int,
)
WINDOW_RESULT = record(
    window_bytes=float, pacing_bytes_per_s=float, window_segments_min=float, next_timer_ns=int
)
PATH_EVENT = _layout(
    "now_ns kind path n_paths rtt_ns bytes ready_bytes segment_bytes is_resend avoid_path flow",
    "rand rand2",
)
PATH_RESULT = _layout("path burst_bytes")
PATH_HEAD = _layout("usable inflight_bytes rtt_ns")
LOSS_EVENT = _layout(
    "now_ns kind path segment_bytes rtt_ns srtt_ns rttvar_ns rtt_min_ns rto_ns "
    "newest_acked_sent_ns oldest_inflight_sent_ns newest_inflight_sent_ns highest_acked_seq "
    "cumulative_seq acked_segments inflight_segments spurious_segments sacked_segments "
    "window_bytes probed_sent_ns",
    "rand",
)
LOSS_RESULT = _layout("lost_below_seq lost_sent_before_ns next_check_ns probe")
CREDIT_EVENT = _layout(
    "now_ns kind demand_bytes granted_bytes received_bytes segment_bytes active_flows "
    "link_bytes_per_s ecn_segments",
    "rand",
)
CREDIT_RESULT = _layout("granted_bytes next_tick_ns")


@dataclass(frozen=True)
class Family:
    """The interface of one policy family; codes and hook order match native/policy/policy.h."""

    name: str
    code: int
    hooks: tuple[str, ...]
    event: Record
    result: Record
    shared: str  # the argument name of the records that flows share; "" if there are none
    shared_head: Record
    optional_hooks: tuple[str, ...] = ()  # the last of `hooks`: a policy may lack them

    @property
    def own_paths(self) -> bool:
        """Whether each policy of the family chooses if it has path records."""
        return self.name == "window"


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            Family(
                "window",
                1,
                ("on_start", "on_ack", "on_loss", "on_timeout", "on_timer", "on_send"),
                WINDOW_EVENT,
                WINDOW_RESULT,
                "",
                EMPTY,
                ("on_timer", "on_send"),
            ),
            Family(
                "credit",
                2,
                ("on_start", "on_demand", "on_tick"),
                CREDIT_EVENT,
                CREDIT_RESULT,
                "port",
                EMPTY,
            ),
            Family(
                "path",
                3,
                ("on_start", "pick", "on_feedback"),
                PATH_EVENT,
                PATH_RESULT,
                "path",
                PATH_HEAD,
            ),
            Family(
                "loss",
                4,
                ("on_start", "on_ack", "on_timer"),
                LOSS_EVENT,
                LOSS_RESULT,
                "path",
                EMPTY,
            ),
        )
    }
)


@dataclass(frozen=True)
class Policy:
    """A declared policy: its name, its records, and its hooks in the order of its family."""

    family: Family
    name: str
    flow: Record
    shared: Record
    params: Record
    hooks: tuple[Hook, ...]  # None: an optional hook that the policy lacks
    module: str  # path of the file that declares it
    promises: Promises = NOTHING
    presets: Presets = field(default_factory=dict)  # what differs from the defaults, by name

    @property
    def shares(self) -> str:
        """Which records the hooks get besides the flow's: "path", "port" or "" (none)."""
        return _shares(self.family, self.shared)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments of a hook."""
        return _arguments(self.shares)

    @property
    def hook_numbers(self) -> tuple[int, ...]:
        """The numbers of the hooks that the policy has."""
        return tuple(index for index, hook in enumerate(self.hooks) if hook is not None)

    def with_preset(self, name: str) -> Policy:
        """The policy whose defaults are the parameters of a preset; ValueError if it has none."""
        if name not in self.presets:
            there = ", ".join(self.presets) or "none"
            raise ValueError(f"{self.name} has no preset {name!r}; it has: {there}")
        values = MappingProxyType({**self.params.defaults, **self.presets[name]})
        return replace(self, params=Record(self.params.dtype, values), presets={})

    def __str__(self) -> str:
        return f"{self.family.name} policy {self.name!r} in {self.module}"


def _shares(family: Family, shared: Record) -> str:
    return "path" if family.own_paths and shared.size_bytes else family.shared


def _arguments(shares: str) -> tuple[str, ...]:
    middle = {"path": ("paths",), "port": ("port",)}.get(shares, ())
    return ("flow", *middle, "params", "event", "result")


def _starts_at_zero(what: str, state: Record) -> Record:
    for name, value in state.defaults.items():
        if np.any(np.asarray(value) != 0):
            raise ValueError(f"{what} field {name!r} starts at zero: set it in on_start")
    return state


def _presets(name: str, params: Record, presets: Presets) -> Presets:
    for preset, values in presets.items():
        if not (preset.isidentifier() and preset.isascii() and preset == preset.lower()):
            raise ValueError(f"policy {name!r}: preset {preset!r}: write it in lower_case")
        if preset in params.defaults:
            raise ValueError(f"policy {name!r}: preset {preset!r} is also a parameter")
        if unknown := sorted(set(values) - set(params.defaults)):
            raise ValueError(f"policy {name!r}: preset {preset!r}: no parameter {unknown[0]!r}")
    return MappingProxyType({preset: MappingProxyType({**presets[preset]}) for preset in presets})


def _joined(head: Record, own: Record) -> Record:
    taken = set(head.defaults) & set(own.defaults)
    if taken:
        raise ValueError(f"path field {min(taken)!r} is written by the core: use another name")
    return record(**head.defaults, **own.defaults)


def _declare(
    family: Family,
    name: str,
    flow: Record,
    shared: Record,
    params: Record,
    hooks: Mapping[str, Hook],
    promises: Promises,
    presets: Presets,
) -> Policy:
    plain = name.replace("-", "_")
    if not (plain.isidentifier() and plain.isascii() and plain == plain.lower()):
        raise ValueError(f"policy name {name!r}: write it with a-z, 0-9, - and _")
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(f"policy name {name!r}: at most {MAX_NAME_CHARS} characters")
    _starts_at_zero("flow", flow)
    _starts_at_zero(family.shared or "path", shared)
    arguments = _arguments(_shares(family, shared))
    for hook in family.hooks:
        if hooks.get(hook) is None and hook in family.optional_hooks:
            continue
        code = getattr(hooks[hook], "__code__", None)
        if code is None:
            raise TypeError(f"policy {name!r}: {hook} is not a plain function")
        if code.co_argcount != len(arguments):
            raise TypeError(
                f"policy {name!r}: {hook} must take ({', '.join(arguments)}), "
                f"not {code.co_argcount} arguments"
            )
    ordered = tuple(hooks.get(hook) for hook in family.hooks)
    module = str(hooks[family.hooks[1]].__code__.co_filename)  # hooks[0] may be the default one
    whole = _joined(family.shared_head, shared)
    sets = _presets(name, params, presets)
    return Policy(family, name, flow, whole, params, ordered, module, promises, sets)


def window_policy(
    name: str,
    *,
    flow: Record = EMPTY,
    path: Record = EMPTY,
    params: Record = EMPTY,
    on_start: Hook,
    on_ack: Hook,
    on_loss: Hook,
    on_timeout: Hook,
    on_timer: Hook | None = None,
    on_send: Hook | None = None,
    promises: Promises = NOTHING,
    presets: Presets = MappingProxyType({}),
) -> Policy:
    """Declares a window policy: it decides a flow's congestion window and its sending rate.

    With `path`, a record for each path of the flow, its hooks get `paths` after `flow`.
    """
    return _declare(
        FAMILIES["window"],
        name,
        flow,
        path,
        params,
        {
            "on_start": on_start,
            "on_ack": on_ack,
            "on_loss": on_loss,
            "on_timeout": on_timeout,
            "on_timer": on_timer,
            "on_send": on_send,
        },
        promises,
        presets,
    )


def _start_path(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.path = 0
    result.burst_bytes = 0


def path_policy(
    name: str,
    *,
    flow: Record = EMPTY,
    path: Record = EMPTY,
    params: Record = EMPTY,
    on_start: Hook = _start_path,
    pick: Hook,
    on_feedback: Hook,
    promises: Promises = NOTHING,
    presets: Presets = MappingProxyType({}),
) -> Policy:
    """Declares a path policy: it picks path and length of a burst; `flow` is a record per peer."""
    return _declare(
        FAMILIES["path"],
        name,
        flow,
        path,
        params,
        {"on_start": on_start, "pick": pick, "on_feedback": on_feedback},
        promises,
        presets,
    )


def _start_loss(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.lost_below_seq = -1
    result.lost_sent_before_ns = -1
    result.next_check_ns = -1


def loss_policy(
    name: str,
    *,
    flow: Record = EMPTY,
    path: Record = EMPTY,
    params: Record = EMPTY,
    on_start: Hook = _start_loss,
    on_ack: Hook,
    on_timer: Hook,
    promises: Promises = NOTHING,
    presets: Presets = MappingProxyType({}),
) -> Policy:
    """Declares a loss policy: it sets loss cutoffs and the time of the next timer check."""
    return _declare(
        FAMILIES["loss"],
        name,
        flow,
        path,
        params,
        {"on_start": on_start, "on_ack": on_ack, "on_timer": on_timer},
        promises,
        presets,
    )


def credit_policy(
    name: str,
    *,
    flow: Record = EMPTY,
    port: Record = EMPTY,
    params: Record = EMPTY,
    on_start: Hook,
    on_demand: Hook,
    on_tick: Hook,
    promises: Promises = NOTHING,
    presets: Presets = MappingProxyType({}),
) -> Policy:
    """Declares a credit policy: it decides a receiver's grants; all flows share the port record."""
    return _declare(
        FAMILIES["credit"],
        name,
        flow,
        port,
        params,
        {"on_start": on_start, "on_demand": on_demand, "on_tick": on_tick},
        promises,
        presets,
    )
