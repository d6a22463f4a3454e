"""`weft plan`: finds which ports lead over which links, and plans the traffic of jobs."""

import click

from transport.cli.plan_assign import command as assign, release
from transport.cli.plan_probe import command as probe
from transport.cli.plan_watch import command as watch


@click.group("plan")
def command() -> None:
    """Find which ports lead over which links, and plan the traffic of jobs over them."""


for one in (assign, probe, release, watch):
    command.add_command(one)
