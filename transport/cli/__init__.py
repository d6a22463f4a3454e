"""The `weft` command line: finds subcommands and turns errors into one line and an exit status.

A subcommand's module is imported only when the subcommand is used.
"""

import errno
import os
import re
import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec

import click

from transport.ground.interrupts import with_interrupts
from transport.ground.text import nearest, similar

INTERRUPTED = 130  # exit status after Ctrl-C, as in a shell

# What a path of a user can have wrong, wherever a command meets it.
WRONG_PATH = (
    *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EROFS),
    *(errno.ELOOP, errno.ENAMETOOLONG, errno.EEXIST, errno.EINVAL),
)

# Subcommand -> one line of help. Module transport.cli.NAME defines `command` or `NAME`.
COMMANDS = {
    "deploy": "Write files that start a job under torchrun, MPI, Slurm, Kubernetes or Ray.",
    "diagnose": "Say which rank, NIC or path of a traced job is slow or hung.",
    "estimate": "Estimate how long communication takes, and what a faster network buys.",
    "docs": "Print or search the pages of the documentation.",
    "doctor": "Check what this host supports, and say how to fix what it lacks.",
    "counters": "List every counter: scope, unit, kind, meaning.",
    "metrics": "Serve counters of running processes to Prometheus.",
    "knobs": "List every knob, or those you name: value, unit, range, meaning.",
    "lab": "A real multi-path network of namespaces on this host.",
    "plan": "Find which ports lead over which links, and plan jobs over them.",
    "policy": "List, write, check, compile, try and replay policies.",
    "top": "Show what running processes send, receive and wait for.",
    "report": "Write one page about a traced job: verdicts, traffic, lost time, cost.",
    "sim": "Simulate a fabric of thousands of hosts under your policies.",
    "trace": "Show, compare and record traces of NCCL's operations.",
    "run": "Run a command with NCCL pointed at the weft plugin.",
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in sorted(COMMANDS) if find_spec(f"transport.cli.{name}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = import_module(f"transport.cli.{cmd_name}")
        found = getattr(module, "command", None) or getattr(module, cmd_name)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"no such command: {args[0]}{nearest(args[0], known)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="weft")
def weft() -> None:
    """Userspace transport for GPU traffic: a drop-in NCCL network plugin."""


def fail(text: str, status: int) -> int:
    """Prints the text on stderr as a single line; returns the status."""
    click.echo("weft: " + " ".join(text.split()), err=True)
    return status


def _option_names(ctx: click.Context) -> list[str]:
    """The names of the options of a command, such as --json."""
    options = [one for one in ctx.command.get_params(ctx) if one.opts[0][:1] == "-"]
    return [name for one in options for name in (*one.opts, *one.secondary_opts)]


def _unknown_option(error: click.NoSuchOption) -> str:
    """The error, with the option of the command that is most similar."""
    if error.ctx is None:
        return error.format_message()
    known, given = _option_names(error.ctx), error.option_name
    begins = [name for name in known if len(given) == 2 and name.startswith(f"-{given}")]
    hint = f"; did you mean {' or '.join(begins)}?" if begins else similar(given, known)
    return f"no such option: {given}{hint} (see {error.ctx.command_path} --help)"


def _wrong_usage(error: click.UsageError) -> str:
    """The error; for a word that has no place, with the option that it may mean."""
    said = error.format_message()
    if isinstance(error, click.BadOptionUsage) and error.option_name == "--json":
        return f"{said} Give FILE, or - for stdout."
    if error.ctx is None:
        return said
    if extra := re.match(r"Got unexpected extra arguments? \((\S+?)[ )]", said):
        known = {name.lstrip("-"): name for name in _option_names(error.ctx)}
        close = get_close_matches(extra[1], known, n=1, cutoff=0.75)
        said += f"; did you mean {known[close[0]]}?" if close else ""
    return f"{said} (see {error.ctx.command_path} --help)"


def invoke(
    arguments: list[str] | None = None, command: click.Command = weft, name: str = "weft"
) -> int:
    """Runs the command line and returns its exit status."""
    from transport.endpoint.knobs import KnobError
    from transport.native import NativeMissingError

    try:
        result = with_interrupts(
            lambda: command.main(args=arguments, prog_name=name, standalone_mode=False)
        )
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.NoSuchOption as error:
        return fail(_unknown_option(error), 2)
    except click.UsageError as error:
        return fail(_wrong_usage(error), 2)
    except click.ClickException as error:
        return fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return fail("interrupted", INTERRUPTED)
    except KnobError as error:
        return fail(str(error), 2)
    except NativeMissingError as error:
        return fail(str(error), 1)
    except BrokenPipeError:
        # The reader closed the pipe: Python must not fail when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno in WRONG_PATH and error.filename is not None:
            return fail(f"{os.fsdecode(error.filename)}: {error.strerror}", 2)
        if error.errno != errno.ENOSPC:
            raise
        # The disk is full: Python must not fail again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return fail(f"cannot write {error.filename or 'the output'}: {error.strerror}", 1)
    return result if isinstance(result, int) else 0


def main() -> None:
    """Runs the `weft` command and ends the process."""
    _open_standard_files()
    sys.exit(invoke())


def _open_standard_files() -> None:
    """Opens /dev/null for closed standard streams, so that no other file gets their descriptors.

    Otherwise a command that weft runs would print into that file.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
