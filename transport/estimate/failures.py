"""How often to save a run that fails now and then, and what part of its time is useful.

Young, "A first order approximation to the optimum checkpoint interval" (CACM 17:9, 1974), and Daly,
"A higher order estimate of the optimum checkpoint interval for restart dumps" (Future Generation
Computer Systems 22:3, 2006), whose model counts failures while saving and restarting, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Failures:
    """mtbf_s: mean time between failures of the whole job. save_s, restart_s: of one checkpoint."""

    mtbf_s: float
    save_s: float
    restart_s: float

    @property
    def young_s(self) -> float:
        """Young's interval of computation between two checkpoints, in s: sqrt(2 save mtbf)."""
        return math.sqrt(2 * self.save_s * self.mtbf_s)

    @property
    def daly_s(self) -> float:
        """Daly's interval in s (equation 37): the mean time between failures if saving is long."""
        if self.save_s >= 2 * self.mtbf_s:
            return self.mtbf_s
        ratio = self.save_s / (2 * self.mtbf_s)
        return self.young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - self.save_s

    def goodput(self, interval_s: float) -> float:
        """The part of the time that is useful, by Daly's complete model (equation 20).

        The rest is saving, restarting, and what was computed after the last checkpoint.
        """
        mtbf_s = self.mtbf_s
        try:
            lost = math.exp(self.restart_s / mtbf_s)
            lost *= math.expm1((interval_s + self.save_s) / mtbf_s)
        except OverflowError:
            return 0.0  # fails before it has saved anything
        return interval_s / mtbf_s / lost
