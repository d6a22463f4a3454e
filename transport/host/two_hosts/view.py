"""Words for the two hosts of a report, which each of them reads from its own side.

A finding has marks for hosts and directions until it is printed. So the testing end and the
waiting end print the same report, each with itself as "here" and "this host".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from transport.host.finding import Finding

HERE, THERE = "{near}", "{far}"
THIS, OTHER = "{near host}", "{far host}"
TO, FROM = "{to far}", "{from far}"

_WORDS = {
    HERE: "here",
    THERE: "there",
    THIS: "this host",
    OTHER: "the other host",
    TO: "to the peer",
    FROM: "from the peer",
}
_TURNED = {HERE: THERE, THIS: OTHER, TO: FROM}
_TURNED |= {there: here for here, there in _TURNED.items()}
_MARK = re.compile("|".join(map(re.escape, _WORDS)))
_PAIR = re.compile(r" (\S+)>(\S+)$")  # the devices of a pair, at the end of a subject


def seen_by_tester(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in the words of the testing end."""
    return [_filled(one, _WORDS) for one in findings]


def seen_by_server(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in the words of the waiting end, which is "there" to the testing end."""
    words = {mark: _WORDS[_TURNED[mark]] for mark in _WORDS}
    turned = (replace(one, subject=_PAIR.sub(r" \2>\1", one.subject)) for one in findings)
    return [_filled(one, words) for one in turned]


def _filled(finding: Finding, words: dict[str, str]) -> Finding:
    def fill(text: str) -> str:
        return _MARK.sub(lambda mark: words[mark[0]], text)

    return replace(
        finding,
        subject=fill(finding.subject),
        found=fill(finding.found),
        remedy=fill(finding.remedy),
    )
