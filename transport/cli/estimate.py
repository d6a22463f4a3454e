"""`weft estimate`: how long communication takes, and how much of it hides behind computation."""

import click

from transport.cli.estimate_calibrate import command as calibrate
from transport.cli.estimate_check import command as check
from transport.cli.estimate_collective import command as collective
from transport.cli.estimate_compare import command as compare
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
    """Estimate how long communication takes, and what a faster network buys."""


EVERY = (
    calibrate,
    check,
    collective,
    compare,
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
