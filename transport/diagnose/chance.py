"""How likely what was seen is by chance: the tail of the binomial distribution."""

from __future__ import annotations

from math import exp, lgamma, log

# A place is doubted if one of those of the job would look like it with at least this probability.
CHANCE_MAX = 0.01


def at_least(times: int, tries: int, share: float) -> float:
    """The probability of at least `times` successes in `tries` tries with probability `share`."""
    if times <= 0:
        return 1.0
    if share <= 0 or times > tries:
        return 0.0
    if share >= 1:
        return 1.0

    def part(k: int) -> float:
        ways = lgamma(tries + 1) - lgamma(k + 1) - lgamma(tries - k + 1)
        return exp(ways + k * log(share) + (tries - k) * log(1 - share))

    return min(1.0, sum(part(k) for k in range(times, tries + 1)))
