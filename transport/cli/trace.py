"""`weft trace`: shows, compares, converts and records traces of NCCL's operations."""

import click

from transport.cli.trace_diff import command as diff
from transport.cli.trace_export import command as export
from transport.cli.trace_import import command as import_
from transport.cli.trace_info import command as info
from transport.cli.trace_matrix import command as matrix
from transport.cli.trace_profile import command as profile
from transport.cli.trace_query import command as query
from transport.cli.trace_record import command as record
from transport.cli.trace_timeline import command as timeline


@click.group("trace")
def command() -> None:
    """Show, compare, convert and record traces of NCCL's operations.

    DIR is the folder that WEFT_TRACE named, or one that weft trace export or import has written.

    \b
    Examples:
      weft trace record -o traces -- torchrun --nproc-per-node 8 train.py
      weft trace info traces
      weft trace matrix traces
    """


for one in (diff, export, import_, info, matrix, profile, query, record, timeline):
    command.add_command(one)
