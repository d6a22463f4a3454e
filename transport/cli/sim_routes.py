"""`weft sim --routes`: writes the routes and the traffic of a scenario for `weft plan assign`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from transport.cli.output import unwritten
from transport.ground import created
from transport.sim import Simulation, planned


def write_routes(simulation: Simulation, routes_file: Path) -> None:
    """Writes the routes, and beside them the demand: what the workloads send between hosts."""
    own = simulation.scenario
    demand_file = routes_file.with_name(f"{routes_file.stem}-demand.json")
    routes = planned.routes_of(own.network, own.work, simulation.plan)
    demand = planned.demand_of(own.network, own.work)
    rows = [[*pair, size] for pair, size in demand.items()]
    try:
        routes.write(routes_file)
        created.write_output(demand_file, json.dumps({"demand": rows}) + "\n")
    except OSError as error:
        raise unwritten(error.filename or routes_file, error) from None
    paths = own.keys["hosts"]["paths"]
    click.echo(
        f"weft: {len(routes.of):,} routes: weft plan assign {routes_file} --demand {demand_file} "
        f"--paths {paths}",
        err=True,
    )
