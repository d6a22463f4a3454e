"""The routes by which `weft diagnose` judges links: of the trace, or of a file that users name."""

from __future__ import annotations

from pathlib import Path

import click

from transport.plan import planfile
from transport.plan.routes import FILE, Routes, RoutesError, read


def known_routes(folder: Path | None, file: Path | None, plan_file: Path | None) -> Routes | None:
    """The routes in `file`; by default those in routes.json of the folder, if that exists.

    plan_file: the plan that the job's paths follow (WEFT_PLAN); None: the job follows no plan.
    """
    own = folder / FILE if folder is not None and (folder / FILE).is_file() else None
    if file is None:
        file = own
    if file is None:
        if plan_file is not None:
            raise click.UsageError("--plan needs --routes: the file of weft plan probe")
        return None
    try:
        routes = read(file)
        if own is not None and own != file and read(own).fingerprint() != routes.fingerprint():
            raise click.UsageError(
                f"{file} is of another fabric than {own}, which came with the trace: leave out "
                f"--routes, or remove {own} if it is the wrong one"
            )
        if plan_file is None:
            return routes
        return planfile.routes_of_paths(planfile.read(plan_file), routes)
    except (RoutesError, planfile.PlanError) as error:
        raise click.UsageError(str(error)) from None
