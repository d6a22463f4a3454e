"""The `weft estimate train` command that estimates a plan that a search has found."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from transport.cli.estimate_options import LINK_OPTIONS
from transport.cli.estimate_train import command as train

if TYPE_CHECKING:
    from transport.estimate.plan import Plan


def train_command(model: str, given: Mapping[str, Any], plan: Plan) -> str:
    """The command that estimates the same step, to the digit.

    given: options of the search, which `train` has, too: parameter -> value. Others are left out,
    as are those that have the default of `train`, unless MODEL is a file, which may change it.
    """
    from transport.estimate.configs import is_file
    from transport.estimate.search import recompute_of

    degrees = ("data", "tensor", "pipeline", "interleave", "expert", "context")
    others = ("zero", "shard", "micro_batch", "schedule")
    values = {
        **given,
        **{name: getattr(plan, name) for name in (*degrees, *others)},
        "batch": plan.global_batch,
        "bucket": f"{plan.bucket_bytes >> 20} MiB",
        "recompute": recompute_of(plan),
        "split_sequence": plan.sequence,
        "overlap_gather": plan.overlap_gather,
    }
    # `train` refuses options that others make useless, also with their defaults.
    if values.get("network_file") is not None:
        values = {name: one for name, one in values.items() if name not in LINK_OPTIONS}
    elif values.get("inside") is None:
        values.pop("gpus_per_node", None)
    words = ["weft", "estimate", "train", model]
    for option in train.params:
        if isinstance(option, click.Option) and option.name in values:
            words += _words(option, values[option.name], every=is_file(model))
    return shlex.join(words)


def _words(option: click.Option, value: Any, *, every: bool) -> list[str]:
    """The option as it is given on the command line; none if it has its default, unless `every`."""
    if value is None or (value == option.default and not every):
        return []
    if isinstance(value, bool):
        names = option.opts if value else option.secondary_opts
        return [max(names, key=len)] if names else []
    return [max(option.opts, key=len), str(value)]
