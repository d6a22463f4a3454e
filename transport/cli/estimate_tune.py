"""`weft estimate tune`: writes the file by which the plugin chooses algorithms for NCCL."""

from __future__ import annotations

from pathlib import Path

import click

from transport.cli.options import InputFile
from transport.cli.output import print_table, write_file
from transport.ground.units import bytes_text, percent


@click.command("tune", short_help="Write rules for NCCL from measured choices.")
@click.argument("results", nargs=-1, required=True, type=InputFile())
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file for WEFT_TUNE.",
)
def command(results: tuple[Path, ...], output: Path) -> None:
    """Write the choices of algorithm, protocol and channels that RESULTS show to be faster.

    RESULTS are of `python -m bench nccl --choices` (in the repository, not in the wheel), which
    measures NCCL's own choice and others. A choice is taken only where each of its rounds, three or
    more, was over 2 % faster than every round of NCCL's own. All ranks of a job must have the same
    file: WEFT_TUNE=FILE.

    Example: weft estimate tune choices.json -o tune.txt
    """
    from transport.estimate.samples import SamplesError
    from transport.estimate.tuning import rules_of, text_of

    try:
        rules = rules_of(results)
    except SamplesError as error:
        raise click.UsageError(str(error)) from None
    write_file(output, text_of(rules, ", ".join(file.name for file in results)))
    print_table(
        ["operation", "ranks", "from", "to", "algorithm", "protocol", "channels", "faster by"],
        [
            [
                one.operation,
                str(one.ranks),
                bytes_text(one.bytes_min),
                bytes_text(one.bytes_max),
                one.choice.algorithm,
                one.choice.protocol,
                str(one.choice.channels or "NCCL's"),
                percent(one.gain, 0),
            ]
            for one in rules
        ],
    )
    if not rules:
        click.echo("no measured choice is clearly faster than NCCL's own")
    click.echo(f"wrote {output}", err=True)
