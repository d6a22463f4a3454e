"""`weft deploy`: writes files that start a job under a launcher, for the user to change."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from transport.cli.options import OutputFolder
from transport.cli.output import print_table, unwritten
from transport.ground import created
from transport.ground.text import nearest

FOLDER = Path(__file__).resolve().parents[1] / "deploy"
# File -> one line of help.
FILES = {
    "job.env": "Settings of a job, the same on all hosts; the scripts read it.",
    "torchrun.sh": "torchrun, the same command on each host.",
    "mpirun.sh": "Open MPI, from one host.",
    "slurm.sbatch": "Slurm: a task on each host, which starts torchrun there.",
    "slurm_pyxis.sbatch": "Slurm with enroot and pyxis, in a container.",
    "pytorchjob.yaml": "Kubernetes with Kubeflow's training operator.",
    "statefulset.yaml": "Kubernetes without an operator.",
    "ray_start.sh": "Ray on each host, so that its workers use weft.",
    "ray_train.py": "A training with Ray Train, for ray_start.sh.",
}


def _completions(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The files that begin so and are not given yet."""
    given = ctx.params.get("names") or ()
    found = [name for name in FILES if name.startswith(incomplete) and name not in given]
    return [CompletionItem(name, help=FILES[name]) for name in found]


@click.command("deploy")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=_completions)
@click.option(
    "-o",
    "--out",
    metavar="DIR",
    type=OutputFolder(),
    help="The folder to write to, made if it does not exist; without NAME, all files are written.  "
    "[default: this folder]",
)
def command(names: tuple[str, ...], out: Path | None) -> None:
    """Write files that start a job under torchrun, MPI, Slurm, Kubernetes or Ray.

    Without NAME and --out the files are listed. A file that exists is left as it is, and an error.

    \b
    Example: weft deploy job.env torchrun.sh
    """
    for name in names:
        if name not in FILES:
            raise click.UsageError(f"no such file: {name}{nearest(name, list(FILES))}")
    if not names and out is None:
        print_table(["file", "for"], FILES.items())
        return
    folder = out or Path()
    chosen = list(dict.fromkeys(names)) or list(FILES)
    for name in chosen:
        if (folder / name).exists():
            raise click.UsageError(f"{folder / name} exists already: give another folder with -o")
    try:
        if not folder.exists():
            folder.mkdir()
    except OSError as error:
        raise unwritten(folder, error) from None
    for name in chosen:
        write(name, folder / name)
        click.echo(f"wrote {folder / name}")


def write(name: str, path: Path) -> None:
    """Writes one of FILES; scripts can be executed."""
    try:
        created.replace(path, (FOLDER / name).read_bytes())
        if name.endswith(".sh"):
            path.chmod(0o755)
    except OSError as error:
        raise unwritten(path, error) from None
