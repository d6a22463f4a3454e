"""`weft estimate`: how long communication takes, and how much of it hides behind computation."""

import click

from transport.cli.estimate_calibrate import command as calibrate
from transport.cli.estimate_check import command as check
from transport.cli.estimate_collective import command as collective
from transport.cli.estimate_compare import command as compare
from transport.cli.estimate_fit import command as fit
from transport.cli.estimate_graph import command as graph
from transport.cli.estimate_hlo import command as hlo
from transport.cli.estimate_overlap import command as overlap
from transport.cli.estimate_plan import command as plan
from transport.cli.estimate_simulate import command as simulate
from transport.cli.estimate_tolerate import command as tolerate
from transport.cli.estimate_train import command as train
from transport.cli.estimate_tune import command as tune


@click.group("estimate")
def command() -> None:
    """Estimate how long communication takes, and what a faster network buys.

    Begin with `collective` for one operation, `train` for a training step of a model, or `plan` for
    the fastest way to train it; `fit` says what fits into memory. A name that is not known, such as
    `--gpu x`, lists all that are.

    Networks: --inside is the link of a GPU to others of its node, such as nvlink4 (generation 4: of
    an H100), and --between that to other nodes, such as ethernet-400 (400 Gbit/s in each
    direction, of each GPU). By default every GPU is a node of its own, with ethernet-400; in
    `plan`, nodes have 8 GPUs with the link of the GPU's profile.

    Units: 64 kB and 64 MB are powers of 1,000; 64 KiB and 64 MiB, also written 64K and 64M as in
    nccl-tests, of 1,024; a size without a unit is in bytes. Counts of tokens and parameters, such
    as 4M or 10B, are powers of 1,000. Times are as 500ms or 20us; without a unit in ns. What is
    printed has powers of 1,000.
    """


EVERY = (
    calibrate,
    check,
    collective,
    compare,
    fit,
    graph,
    hlo,
    overlap,
    plan,
    simulate,
    tolerate,
    train,
    tune,
)
for one in EVERY:
    command.add_command(one)
