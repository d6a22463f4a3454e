"""Runs the program weft_schedules, which runs fault schedules, and parses its result."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the runner, which it prints as JSON."""

    schedules: int
    distinct: int
    kinds: dict[str, int]
    hung: int
    corrupt_messages: int
    completed: int
    failed: int
    segments_sent: int
    segments_resent: int
    data_lost: int
    policies_failed: int
    fingerprint: str
    violations: list[str]


@dataclass(frozen=True, slots=True)
class Runner:
    """A built weft_schedules and the policies from which it chooses."""

    program: Path
    policies: Path

    def run(
        self, *, seed: int, count: int, violations_max: int = 10, timeout_s: float = 150
    ) -> Outcome:
        """Runs `count` schedules from `seed` on; RuntimeError if the runner itself fails."""
        arguments = [seed, count, self.policies, violations_max]
        done = subprocess.run(
            [str(self.program), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"weft_schedules ended with {done.returncode}: {done.stderr}")
        return Outcome(**json.loads(done.stdout))
