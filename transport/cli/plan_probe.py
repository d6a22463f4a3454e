"""`weft plan probe`: finds which pairs of UDP ports lead over which links."""

from __future__ import annotations

import socket
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli.options import JSON, FiniteRange, output_file
from transport.cli.output import json_option, print_table, unwritten, write_json
from transport.cli.progress import progress_on_a_terminal

if TYPE_CHECKING:
    from transport.plan.hops import Found
    from transport.plan.probe import End, Flow, Limits
    from transport.plan.routes import Routes

PORTS_MAX = 4096  # ports of one NIC: each needs a socket
SHOWN = 4  # pairs of ports in a cell of the table
ROWS_MAX = 64


def end_of(word: str) -> tuple[str, str]:
    """Parses NAME=ADDRESS or ADDRESS; a host's name is looked up."""
    name, equals, address = word.partition("=")
    try:
        found = socket.getaddrinfo(address or name, None, socket.AF_INET, socket.SOCK_DGRAM)
    except OSError as error:
        raise click.UsageError(
            f"{address or name}: {error.strerror}; give an IPv4 address"
        ) from None
    if equals and (not name or ">" in name):
        raise click.UsageError(f"{word}: expected NAME=ADDRESS, and no > in the name")
    return name, str(found[0][4][0])


def local_address(target: str) -> str:
    """The address from which this host sends to the target."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        try:
            opened.connect((target, 9))
        except OSError as error:
            raise click.ClickException(f"no route to {target}: {error.strerror}") from None
        return str(opened.getsockname()[0])


def ends_of_lab(name: str) -> tuple[list[End], dict[str, str]]:
    """The hosts of a lab, and the names of the addresses of its routers."""
    from transport.cli.lab import attached, told
    from transport.plan.probe import End, udp_socket

    with told():
        lab = attached(name)
    hosts = [node for node in lab.plan.nodes if node.startswith("host")]
    ends = [End(one, lab.address(one), partial(lab.call, one, udp_socket)) for one in hosts]
    names = {
        end.address: end.node
        for wire in lab.plan.wires
        for end in wire.ends
        if not end.node.startswith("host")
    }
    return ends, names


def flows_of(ends: list[End], sources: int, pairs: list[tuple[int, int]]) -> list[Flow]:
    """The flows to probe: from each of the first `sources` NICs, over each pair of ports.

    They go to the other NICs on the same side, as "left" in host1/left.
    """

    from transport.plan.probe import Flow
    from transport.plan.routes import side

    found = []
    for source in range(sources):
        for target, end in enumerate(ends):
            one = ends[source]
            if one.address != end.address and side(one.name) == side(end.name):
                found += [Flow(source, target, *pair) for pair in pairs]
    return found


@click.command("probe")
@click.argument("to", metavar="[NAME=ADDRESS]...", nargs=-1)
@click.option("--from", "from_", metavar="NAME=ADDRESS", help="NIC of this host that probes.")
@click.option("--lab", metavar="NAME", help="Probe between all hosts of this lab (weft lab).")
@click.option(
    "--port-base",
    type=click.IntRange(1_024, 65_535),
    default=20_000,
    show_default=True,
    help="First UDP port, as WEFT_PORT_BASE of the job.",
)
@click.option(
    "--ports",
    type=click.IntRange(1, PORTS_MAX),
    default=8,
    show_default=True,
    help="UDP ports of each NIC, from --port-base: engines times paths of a process.",
)
@click.option(
    "--ranges",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Ranges of --ports ports to probe, of which assign takes the best: for jobs of few paths.",
)
@click.option(
    "--pairs",
    type=click.IntRange(1, 1 << 20),
    metavar="N",
    help="Pairs of ports probed for each pair of NICs and range; default: all, at most 256.",
)
@click.option(
    "--samples",
    type=click.IntRange(1, 1_000),
    default=3,
    show_default=True,
    help="Probes of each flow and hop; more probes find smaller loss rates.",
)
@click.option(
    "--rate",
    type=click.IntRange(1, 1_000_000),
    default=800,
    show_default=True,
    help="Probes per second; a Linux router answers at most 1,000.",
)
@click.option(
    "--timeout",
    type=FiniteRange(0.01, 60),
    default=0.5,
    show_default=True,
    help="Seconds to wait for answers.",
)
@click.option(
    "--hops", type=click.IntRange(1, 64), default=8, show_default=True, help="Largest TTL to probe."
)
@click.option(
    "--seconds",
    type=FiniteRange(0.1, 3_600),
    default=60.0,
    show_default=True,
    help="Time limit of the whole run.",
)
@click.option(
    "--names",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='Names of routers, TOML: spine0 = ["10.128.0.2", "10.128.1.2"].',
)
@click.option(
    "--fabric",
    default="",
    metavar="NAME",
    help="Name of the fabric; by default it follows from the links found.",
)
@click.option("-o", "--output", type=output_file(*JSON), default="routes.json", show_default=True)
@json_option
def command(
    to: tuple[str, ...],
    from_: str | None,
    lab: str | None,
    port_base: int,
    ports: int,
    ranges: int,
    pairs: int | None,
    names: Path | None,
    fabric: str,
    output: Path,
    json_path: str | None,
    **bounds: Any,
) -> None:
    """Find which pairs of UDP ports lead over which links, and write routes.json.

    For each pair of ports a datagram is sent with a small TTL, and the router at which the TTL
    ends answers. Run it on each host with the other hosts' addresses, while no job uses the ports.

    Example: weft plan probe --from host0=10.0.0.2 host1=10.1.0.2 -o host0.json
    """
    from transport.plan.hops import found, read_names
    from transport.plan.probe import ProbeError, Prober, grid

    each = _port_ranges(port_base, ports, ranges)
    ends, sources, known = chosen(to, from_, lab)
    wanted = [pair for numbers in each for pair in grid(numbers, numbers, pairs or 256)]
    flows = flows_of(ends, sources, wanted)
    if not flows:
        raise click.UsageError("nothing to probe: give the address of another host than this")
    try:
        known |= read_names(names) if names is not None else {}
        with (
            Prober(ends, flows, limits_of(bounds)) as prober,
            progress_on_a_terminal("probing") as progress,
        ):
            heard = prober.run(lambda ttl: progress(f"hop {ttl}", ttl / bounds["hops"]))
        result = found(ends, heard, known)
    except ProbeError as error:
        raise click.ClickException(str(error)) from None
    if fabric:
        object.__setattr__(result.routes, "fabric", fabric)
    try:
        result.routes.write(output)
    except OSError as error:
        raise unwritten(output, error) from None
    if json_path is not None:
        write_json(document(result, heard.sent), json_path)
    else:
        show(result, heard.sent, output)


def _port_ranges(base: int, ports: int, ranges: int) -> list[range]:
    """Consecutive ranges of `ports` ports each, `ranges` of them, the first beginning at `base`.

    UsageError if they end above 65535, or have more than PORTS_MAX ports together.
    """
    end = base + ports * ranges
    if end > 65_536:
        raise click.UsageError(
            f"--port-base {base}: its {end - base} ports end above 65535: lower it"
        )
    if ports * ranges > PORTS_MAX:
        raise click.UsageError(f"--ranges {ranges}: {ports * ranges} ports: at most {PORTS_MAX}")
    return [range(first, first + ports) for first in range(base, end, ports)]


def limits_of(bounds: dict[str, Any]) -> Limits:
    from transport.plan.probe import Limits

    return Limits(
        rate_per_s=bounds["rate"],
        samples=bounds["samples"],
        timeout_s=bounds["timeout"],
        hops_max=bounds["hops"],
        seconds=bounds["seconds"],
    )


def chosen(
    to: tuple[str, ...], from_: str | None, lab: str | None
) -> tuple[list[End], int, dict[str, str]]:
    """NICs, the ones that send probes first; how many those are; names of routers by address."""
    from transport.plan.probe import End

    if lab is not None:
        if to or from_ is not None:
            raise click.UsageError("--lab probes between all its hosts: give no addresses")
        ends, names = ends_of_lab(lab)
        return ends, len(ends), names
    if not to:
        raise click.UsageError("give the addresses to probe, or --lab")
    targets = [End(*end_of(word)) for word in to]
    near = end_of(from_) if from_ is not None else (local_address(targets[0].address),) * 2
    ends = [End(*near), *(one for one in targets if one.address != near[1])]
    twice = [name for name, count in Counter(one.name for one in ends).items() if count > 1]
    if twice:
        raise click.UsageError(f"the name {twice[0]} is given to several addresses")
    return ends, 1, {}


def by_way(routes: Routes) -> dict[tuple[str, str, str], list[tuple[int, int]]]:
    """(source, target, nodes on the way) -> the pairs of UDP ports that take this way."""
    ways: dict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for (source, target, path), links in routes.of.items():
        nodes = [routes.links[one].partition(">")[2] for one in links[:-1]]
        ways[source, target, " ".join(nodes)].append(routes.ports[source, target, path])
    return ways


def document(result: Found, sent: int) -> dict[str, Any]:
    routes = result.routes
    return {
        "fabric": routes.fingerprint(),
        "probes": sent,
        "flows": len(routes.of),
        "flows_with_unknown_hops": result.unknown,
        "ways": [
            {"from": source, "to": target, "over": nodes.split(), "ports": pairs}
            for (source, target, nodes), pairs in sorted(by_way(routes).items())
        ],
        "loss": {
            link: {"share": one.share, "probes": one.probes}
            for link, one in sorted(result.loss.items())
        },
        "sick": list(routes.sick),
        "notes": list(result.notes),
    }


def show(result: Found, sent: int, output: Path) -> None:
    routes = result.routes
    rows = []
    for (source, target, nodes), pairs in sorted(by_way(routes).items()):
        some = ", ".join(f"{near}:{far}" for near, far in pairs[:SHOWN])
        more = f", ... {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
        rows.append((source, target, nodes or "direct", str(len(pairs)), some + more))
    if len(rows) <= ROWS_MAX:
        print_table(("from", "to", "over", "pairs", "ports (here:there)"), rows)
    else:
        counts = Counter(link for links in routes.of.values() for link in links)
        names = [(routes.links[link], str(count)) for link, count in counts.most_common(ROWS_MAX)]
        print_table(("link", "pairs of ports"), names)
        click.echo(f"{len(rows)} ways through the fabric: see them all with --json")
    for note in result.notes:
        click.echo(f"note: {note}")
    click.echo(
        f"wrote {output}: {len(routes.of)} flows over {len(routes.links)} links, {sent} probes, "
        f"fabric {routes.fingerprint()}"
    )
