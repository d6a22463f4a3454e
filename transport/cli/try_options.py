"""The options of commands that try policies in a small simulated network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from transport.cli.options import FiniteRange
from transport.policies.dumbbell import BURST_BYTES_MAX, SEGMENT_BYTES
from transport.policies.trial import BURST_BYTES_END, SEGMENT_BYTES_MIN, Network, Traffic

MS_MAX, KB_MAX = 1e6, 1_000_000_000
Command = TypeVar("Command", bound=Callable[..., Any])

OPTIONS = (
    click.option("--paths", default=1, show_default=True, type=click.IntRange(1, 256)),
    click.option(
        "--gbytes-per-s",
        default=1.25,
        show_default=True,
        type=FiniteRange(0.001, 1000),
        help="Rate of each path.",
    ),
    click.option(
        "--delay-us",
        default=25.0,
        show_default=True,
        type=FiniteRange(0, 1e6),
        help="One-way delay of each path.",
    ),
    click.option(
        "--queue-kb",
        default=400,
        show_default=True,
        type=click.IntRange(0, KB_MAX),
        help="Queue of each path; 0: no limit.",
    ),
    click.option(
        "--mark-kb",
        default=50,
        show_default=True,
        type=click.IntRange(0, KB_MAX),
        help="Queue length at which ECN marking begins; 0: no marks.",
    ),
    click.option("--loss", default=0.0, show_default=True, type=FiniteRange(0, 0.9)),
    click.option(
        "--duration-ms",
        default=50.0,
        show_default=True,
        type=FiniteRange(0.001, MS_MAX),
        help="Virtual time to run.",
    ),
    click.option(
        "--segment-bytes",
        default=SEGMENT_BYTES,
        show_default=True,
        type=click.IntRange(SEGMENT_BYTES_MIN, 65_535),
        help="Size of a packet, with weft's header of 64 bytes.",
    ),
    click.option(
        "--burst-bytes-max",
        default=BURST_BYTES_MAX,
        show_default=True,
        type=click.IntRange(SEGMENT_BYTES_MIN, BURST_BYTES_END - 1),
        help="Bytes that one decision sends on one path; a segment in any case.",
    ),
)


def network_options(command: Command) -> Command:
    """Adds the options that network_of and traffic_of read, but --flows and --stagger-ms."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def network_of(given: Mapping[str, Any]) -> Network:
    """The network that the options describe."""
    return Network(
        paths=given["paths"],
        bytes_per_s=int(given["gbytes_per_s"] * 1e9),
        delay_ns=int(given["delay_us"] * 1e3),
        queue_bytes=given["queue_kb"] * 1000,
        mark_bytes=given["mark_kb"] * 1000,
        loss=given["loss"],
    )


def traffic_of(given: Mapping[str, Any]) -> Traffic:
    """The flows that the options describe."""
    return Traffic(
        flows=given["flows"],
        stagger_ns=int(given["stagger_ms"] * 1e6),
        duration_ns=int(given["duration_ms"] * 1e6),
        segment_bytes=given["segment_bytes"],
        burst_bytes_max=given["burst_bytes_max"],
    )
