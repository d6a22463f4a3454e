"""Finds the line and the exception of a hook that failed in compiled code.

Compiled code returns only a status; the same call, interpreted, raises the exception.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from congestion.api import Policy
from transport.compiler.interpret import Interpreted
from transport.conformance.records import RAISED
from transport.policies.dumbbell import Plan, run
from transport.policies.recording import parse
from transport.policies.replay import Replay

RECORDING_BYTES_MAX = 256 << 20
_OURS = Path(__file__).parents[1]  # stack frames in this folder are skipped


def told(error: BaseException) -> str:
    """An exception and its line, as in "mine.py:12: ZeroDivisionError: division by zero"."""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if _OURS not in file.parents:
            place = f"{file.name}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return f"{place}{type(error).__name__}: {error}"


class Witness:
    """Interpreted hooks that keep the exception of the first failed hook."""

    def __init__(self, policy: Policy) -> None:
        self.runner = Interpreted(policy)
        self.first = ""

    def call(self, hook: str, **records: Any) -> int:
        try:
            self.runner.run(hook, **records)
        except RAISED as error:
            self.first = self.first or f"{hook} raises at {told(error)}"
            return 1
        return 0


def of_a_run(policy: Policy, plan: Plan) -> str:
    """The exception of a hook in a run, found by recording the run and replaying it interpreted."""
    plan.recording_bytes_max = RECORDING_BYTES_MAX
    witness = Witness(policy)
    Replay(policy, witness).run(parse(run(plan).recording).of(policy.family.name))
    return witness.first
