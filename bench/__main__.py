"""Decides which benchmark `python -m bench NAME` runs.

Never imports one that was not asked for.
"""

import sys
from importlib import import_module

import click

# Name -> one line of help; bench.NAME holds `command`.
BENCHES = {
    "core": "What the protocol core costs a segment.",
    "latency": "Half round trips against TCP_NODELAY.",
    "nccl": "NCCL collectives and DDP over weft against NCCL's Socket.",
    "p2p": "Throughput of one connection against TCP.",
    "policy": "What a policy call costs against the same in C.",
    "turnaround": "From a saved policy file to checked and running on a live flow.",
    "verbs": "What the verbs datapath costs a segment and a path, over a fake provider.",
}


class Benches(click.Group):
    """Imports a benchmark when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(BENCHES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in BENCHES:
            return None
        found = import_module(f"bench.{cmd_name}").command
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Benchmarks"):
            formatter.write_dl(sorted(BENCHES.items()))


@click.group(cls=Benches, context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Microbenchmarks: tables on a terminal, --json FILE for the numbers."""


if __name__ == "__main__":
    sys.exit(bench(prog_name="python -m bench"))
