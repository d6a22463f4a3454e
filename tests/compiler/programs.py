"""Generates random hook bodies in the policy language, beyond what shipped policies use."""

from __future__ import annotations

import random
from collections.abc import Callable

INTEGERS = (
    "event.path",
    "event.rtt_ns",
    "flow.i",
    "flow.j",
    "params.n",
    "3",
    "-2",
    "flow.seen[event.path]",
    "len(flow.seen)",
)
FLOATS = ("flow.x", "flow.y", "event.rand", "params.gain", "1.5", "-0.25", "0.0")
CONDITIONS = ("event.path > 2", "flow.x < event.rand", "flow.i == 0")

HEAD = '''"""A random program."""
import math
from congestion.api import record, window_policy
Flow = record(x=float, y=float, i=int, j=int, seen=(0, 0, 0, 0))
Params = record(gain=0.5, n=3)
def hold(flow, params, event, result):
    result.window_bytes = 1.0
def on_ack(flow, params, event, result):
'''
TAIL = """
POLICY = window_policy("random", flow=Flow, params=Params,
                       on_start=hold, on_ack=on_ack, on_loss=hold, on_timeout=hold)
"""


class Program:
    """Generates one program."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def text(self) -> str:
        body = [line for _ in range(4) for line in self.statement(1, 2)]
        return HEAD + "\n".join(body) + TAIL

    def integer(self, depth: int) -> str:
        if depth == 0:
            return self.draw.choice(INTEGERS)
        i, f, c = self.integer, self.number, self.condition
        operator = self.draw.choice(("+", "-", "//", "%", "&", "|", "^"))
        return self.one_of(
            lambda: f"({i(depth - 1)} {operator} {i(depth - 1)})",
            lambda: f"min({i(depth - 1)}, {i(depth - 1)})",
            lambda: f"max({i(depth - 1)}, {i(depth - 1)})",
            lambda: f"abs({i(depth - 1)})",
            lambda: f"int({f(depth - 1)})",
            lambda: f"({i(depth - 1)} if {c(depth - 1)} else {i(depth - 1)})",
            lambda: f"({i(depth - 1)} >> 2)",
        )

    def number(self, depth: int) -> str:
        if depth == 0:
            return self.draw.choice(FLOATS)
        i, f = self.integer, self.number
        operator = self.draw.choice(("+", "-", "*", "/", "//", "%"))
        other = self.draw.choice((f, i))
        function = self.draw.choice(("sqrt", "exp", "log", "fabs"))
        return self.one_of(
            lambda: f"({f(depth - 1)} {operator} {other(depth - 1)})",
            lambda: f"max({f(depth - 1)}, {f(depth - 1)})",
            lambda: f"min({f(depth - 1)}, {f(depth - 1)})",
            lambda: f"math.{function}({f(depth - 1)})",
            lambda: f"float({i(depth - 1)})",
            lambda: f"({i(depth - 1)} / {i(depth - 1)})",
        )

    def condition(self, depth: int) -> str:
        if depth == 0:
            return self.draw.choice(CONDITIONS)
        f, c = self.number, self.condition
        comparison = self.draw.choice(("<", ">=", "=="))
        junction = self.draw.choice(("and", "or"))
        return self.one_of(
            lambda: f"({f(depth - 1)} {comparison} {self.integer(depth - 1)})",
            lambda: f"({c(depth - 1)} {junction} {c(depth - 1)})",
            lambda: f"(not {c(depth - 1)})",
        )

    def one_of(self, *forms: Callable[[], str]) -> str:
        return self.draw.choice(forms)()

    def statement(self, indent: int, depth: int) -> list[str]:
        margin = "    " * indent
        kind = self.draw.randrange(6)
        if kind == 0:
            return [f"{margin}flow.i = {self.integer(2)}"]
        if kind == 1:
            return [f"{margin}flow.x = {self.number(2)}"]
        if kind == 2:
            return [f"{margin}flow.y += {self.number(2)}"]
        if kind == 3:
            # "+ 0" hides the constant: the compiler refuses a constant index that is out of range.
            return [f"{margin}flow.seen[({self.integer(0)} + 0)] = {self.integer(1)}"]
        inner = self.statement(indent + 1, depth - 1) if depth else [f"{margin}    pass"]
        if kind == 4:
            other = self.statement(indent + 1, depth - 1) if depth else [f"{margin}    pass"]
            return [f"{margin}if {self.condition(1)}:", *inner, f"{margin}else:", *other]
        return [f"{margin}for k{indent} in range(len(flow.seen)):", *inner]
