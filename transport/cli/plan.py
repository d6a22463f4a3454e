"""`weft plan`: finds which ports lead over which links, and plans the traffic of jobs."""

import click

from transport.cli.plan_probe import command as probe


@click.group("plan")
def command() -> None:
    """Find which ports lead over which links, and plan the traffic of jobs over them."""


for one in (probe,):
    command.add_command(one)
