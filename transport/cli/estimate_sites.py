"""Options and words of several sites, such as data centres, that a wide-area link joins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from transport.cli.estimate_options import known_links, usage_errors
from transport.cli.options import TimeType
from transport.estimate.sites import SITES_MAX
from transport.ground.units import rate_text, time_text

if TYPE_CHECKING:
    from transport.estimate.networks import Link, Network
    from transport.estimate.plan import Plan

Command = TypeVar("Command", bound=Callable[..., Any])


def sites_options(command: Command) -> Command:
    """Adds the options that describe several sites."""
    for option in (
        click.option(
            "--site-latency",
            "site_latency_ns",
            type=TimeType(),
            help="Latency of a message between sites, one way, such as '5 ms': light in a fibre "
            "needs 5 us a km. Default: that of --between-sites.",
        ),
        click.option(
            "--between-sites",
            metavar="LINK",
            help="Link of a whole site to the others, such as ethernet-800, or one of your own "
            "(--links-file); all GPUs of a site share it.",
        ),
        click.option(
            "--sites",
            default=1,
            show_default=True,
            type=click.IntRange(1, SITES_MAX),
            help="Sites, as data centres, with equally many GPUs, numbered one after the other. "
            "--between is the network inside each. Replicas of --shard in other sites sum "
            "gradients between them.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class SiteOptions:
    """Several sites and their link; count 1: one site, without a link. name: of the link."""

    count: int
    link: Link | None
    name: str = ""
    latency_ns: int | None = None

    @classmethod
    def taken(cls, given: dict[str, Any]) -> SiteOptions:
        """Reads the options, and removes them from `given`."""
        from transport.estimate.networks import link

        count, name = given.pop("sites"), given.pop("between_sites")
        latency_ns = given.pop("site_latency_ns")
        if count == 1:
            if name is not None or latency_ns is not None:
                option = "--site-latency" if name is None else "--between-sites"
                raise click.UsageError(f"{option}: give the number of --sites, 2 or more")
            return cls(1, None)
        if name is None:
            raise click.UsageError(
                "--sites: give --between-sites, the link of a whole site, such as ethernet-800"
            )
        with usage_errors():
            found = link(name, known_links())
        if found.kind != "network":
            raise click.UsageError(f"--between-sites: {name} is no link of a network")
        chosen = cls(count, found, name, latency_ns)
        return cls(count, chosen.delayed(found), name, latency_ns)

    def delayed(self, link: Link) -> Link:
        """A link with the latency between sites, if one was given."""
        from transport.estimate.networks import delayed

        return link if self.latency_ns is None else delayed(link, self.latency_ns)

    def join(self, network: Network, plan: Plan) -> Network:
        """The network in each site. PlanError: the plan does not fill the sites."""
        from transport.estimate.sites import joined

        return network if self.link is None else joined(network, plan, self.count, self.link)

    @property
    def ends(self) -> str:
        """What the slowest links join."""
        return "nodes" if self.link is None else "sites"

    def lines(self) -> list[str]:
        """A line about the sites; none if there is one."""
        if self.link is None:
            return []
        latency_ns = max(one.step_ns for one in self.link.protocols)
        return [
            f"{self.count} sites joined by {self.name}: {rate_text(self.link.bytes_per_s)} of a "
            f"site, {time_text(latency_ns)} a message"
        ]


def site_notes(network: Network, plan: Plan) -> list[str]:
    """Notes on what an estimate over several sites assumes."""
    if network.sites is None:
        return []
    notes = [
        "sites: a group in several sites works in two levels, inside and between them, as HSDP "
        "does; packets lost between sites are not in the times; no such run was compared"
    ]
    if plan.splits_gradients and plan.group("shard").nodes(network.sites.gpus) > 1:
        notes.append(
            f"parameters are gathered between sites: --shard {network.sites.gpus // plan.tensor} "
            "keeps that inside a site"
        )
    elif plan.splits_gradients and plan.microbatches > 1 and not plan.sum_once:
        notes.append(
            f"replicas sum gradients {plan.microbatches:,} times a step: --sum-replicas-once does "
            "it once"
        )
    return notes
