"""`weft run`: runs a command with an environment in which NCCL uses weft or fails with an error.

The command replaces this process, so the exit status is the command's.
"""

import os
from collections.abc import Mapping
from typing import NoReturn

import click

from congestion.api import FAMILIES
from transport import Endpoint, native
from transport.cli.others import CannotRunError, program_of
from transport.cli.profiler import load_profiler
from transport.cli.settings import unusable
from transport.endpoint import knobs
from transport.errors import WeftError
from transport.host import probes
from transport.policies.choice import PolicyRefusedError, is_broken, resolve_settings


def environment(current: dict[str, str], *, net_debug: bool) -> dict[str, str]:
    """The user's variables, plus those that make NCCL load the weft plugin."""
    # The plugin has no Python and cannot compile a policy: compile .py policies here and pass the
    # paths of their libraries.
    chosen = dict(current) | resolve_settings(current, {})
    chosen["NCCL_NET_PLUGIN"] = str(native.PLUGIN_PATH)
    # With NCCL_NET set, NCCL fails if the plugin does not load. Otherwise it would silently fall
    # back to its own sockets.
    chosen["NCCL_NET"] = "weft"
    # NCCL 2.28 and 2.29 unload a plugin with its last communicator and then forget NCCL_NET_PLUGIN
    # (NVIDIA/nccl issue 1978): the next communicator finds no network. An extra reference keeps the
    # plugin loaded.
    chosen.setdefault("NCCL_NET_PLUGIN_REF_COUNT", "1")
    # NCCL 2.28 and later find the profiler in the library of the network plugin; 2.26 and 2.27 do
    # not.
    if chosen.get("WEFT_TRACE"):
        load_profiler(chosen)
    if net_debug:
        if chosen.get("NCCL_DEBUG", "").upper() not in TELLS_NETWORK:
            chosen["NCCL_DEBUG"] = "INFO"
        if not chosen.get("NCCL_DEBUG_SUBSYS"):
            chosen["NCCL_DEBUG_SUBSYS"] = "INIT,NET"
    return chosen


# Values of NCCL_DEBUG with which NCCL logs at least what --net-debug asks for.
TELLS_NETWORK = ("INFO", "TRACE")


def replaced(current: Mapping[str, str], chosen: Mapping[str, str]) -> list[str]:
    """A line for each variable of the user that has another value for the command."""
    return [
        f"{name}={current[name]} is set; {name}={chosen[name]} for this command"
        for name in ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")
        if current.get(name) and chosen.get(name, "") != current[name]
    ]


def replace_process(cmd: tuple[str, ...], variables: dict[str, str]) -> NoReturn:
    """Runs the command in place of this process; ends as a shell does if that fails."""
    try:
        os.execve(program_of(cmd[0]), list(cmd), variables)
    except OSError as error:
        raise CannotRunError(cmd[0], error) from None


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
)
@click.option("--net-debug", is_flag=True, help="Let NCCL log which network and paths it sets up.")
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED)
def command(net_debug: bool, cmd: tuple[str, ...]) -> None:
    """Run CMD with NCCL pointed at the weft plugin.

    A policy may be a .py file (WEFT_WINDOW_POLICY=mine.py), which is compiled first.

    Example: weft run -- torchrun --nproc-per-node 8 train.py
    """
    if not native.PLUGIN_PATH.exists():
        raise click.ClickException(
            f"the plugin is not built ({native.PLUGIN_PATH}): run make build"
        )
    for found in unusable(knobs.in_force()):
        raise click.UsageError(found.found)
    try:
        variables = environment(dict(os.environ), net_debug=net_debug)
    except PolicyRefusedError as error:
        raise click.ClickException(str(error)) from None
    except WeftError as error:
        raise click.UsageError(str(error)) from None
    try:
        # Fails if a knob names an interface, policy or file that does not exist.
        Endpoint(**probes.BESIDE_A_JOB).close()
    except WeftError as error:
        # A library that exists and cannot be loaded is a failure (1), not wrong usage (2).
        named = (variables.get(f"WEFT_{family.upper()}_POLICY", "") for family in FAMILIES)
        kind = click.ClickException if any(map(is_broken, named)) else click.UsageError
        raise kind(str(error)) from None
    if complaint := probes.unknown_socket_interface(os.environ.get("NCCL_SOCKET_IFNAME", "")):
        click.echo(f"weft: {complaint}", err=True)
    for line in replaced(os.environ, variables):
        click.echo(f"weft: {line}", err=True)
    replace_process(cmd, variables)
