"""Finds Megatron-LM's arguments in a shell script, in YAML, or in what Megatron prints at start.

Values stay text; of a script, variables that it sets itself are replaced.
"""

from __future__ import annotations

import ast
import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

ARITHMETIC_MAX = 200  # characters
SHOWN_MAX = 40  # characters of a value that are shown
PLACES_MAX = 8  # values that are shown
DEPTH_MAX = 8  # of variables that stand for variables
ON, OFF = "true", "false"
_PRINTED = re.compile(r"^\s*(\w+) \.{2,} ?(.*)$", re.M)
_LINE = re.compile(
    r"^[ \t]*(?:- )?(?:--)?([A-Za-z][\w-]*):[ \t]*([^\n#]*?)[ \t]*(?:#[^\n]*)?$", re.M
)
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")
_ONE_SET = (
    r"([A-Za-z_]\w*)="
    r"""(?:\$\(\(([^()\n]*)\)\)|"([^"\n]*)"|'([^'\n]*)'|([^\s;#"'(]*))"""
)
_SET = re.compile(_ONE_SET)
# Assignments next to each other, where a command may begin.
_SETS = re.compile(
    r"(^|[;)]|&&?|\|\|?|\b(?:then|else|do|export|local|readonly)\b)[ \t]*"
    r"(?:(?:export|local|readonly)[ \t]+)?"
    rf"({_ONE_SET}(?:[ \t]+{_ONE_SET})*)",
    re.M,
)
_BRANCH = re.compile(r"(?:^|;)[ \t]*(?:(if|case)|(fi|esac))\b", re.M)
_NAME = re.compile(r"(?<![\w${])[A-Za-z_]\w*")
_NUMBERS = re.compile(r"[0-9\s+*/%-]{1,200}")
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_WORD = re.compile(r"""[^\s"'();|&<>\\]+""")
_OPENED = re.compile(r"""[ \t]+['"(]*|[ \t]*\n[ \t]*""")
_ARGUMENT = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^{}]*))?\}|([A-Za-z_]\w*))")


def is_script(text: str, is_yaml: bool) -> bool:
    """Whether the text is a script, neither YAML nor what Megatron prints."""
    return not is_yaml and len(_PRINTED.findall(text)) <= 3


def arguments_of(text: str, is_yaml: bool) -> dict[str, str]:
    """Name of each argument, with underscores -> its value; a flag without one is `true`.

    The last one counts, as in argparse. Variables that the script does not set stay as they are.
    """
    printed = _PRINTED.findall(text)
    if len(printed) > 3:
        return {name: value.strip() for name, value in printed}
    if is_yaml:
        pairs = _LINE.findall(text)
        return {_plain(name): value.strip("'\"") for name, value in pairs if value}
    return _of_script(text)


@dataclass(frozen=True)
class Places:
    """The different values of a variable or an argument of a script, and the last line of each.

    in_branch: if, case, && or || decide whether some line of it runs; only_in_branch: any line.
    """

    lines: dict[str, int]
    in_branch: bool
    only_in_branch: bool

    def __str__(self) -> str:
        values = {"" if one == ON else f"{one[:SHOWN_MAX]} ": at for one, at in self.lines.items()}
        shown = [f"{value}(line {line})" for value, line in values.items()]
        return ", ".join(["..."] * (len(shown) > PLACES_MAX) + shown[-PLACES_MAX:])


def places_of(text: str) -> dict[str, Places]:
    """Each argument of a script, with underscores, and the values that it has."""
    plain = _script(text)
    known = {name: value for name, value, _, _ in _assigned(plain)}
    branches, found = _Branches(plain), _Found(text)
    for name, raw, at in _arguments(plain):
        found.add(name, _replaced(raw, known), at, branches.has(at))
    return found.places()


def variables_of(text: str, counts: Callable[[str], bool]) -> dict[str, Places]:
    """Variables of a script with a value that a branch decides on, and their values.

    counts: whether an argument does. Words matter if they are the value of such an argument, other
    numbers if the script uses the variable and has several.
    """
    plain = _script(text)
    values = [raw for name, raw, _ in _arguments(plain) if counts(name)]
    direct = {match[1] or match[3] for raw in values for match in _VARIABLE.finditer(raw)}
    found = _Found(text)
    for name, value, at, in_branch in _assigned(plain):
        if value.isdecimal() or (name in direct and value and "$" not in value):
            found.add(name, value, at, in_branch)
    return {
        name: one
        for name, one in found.places().items()
        if one.in_branch
        and (name in direct or (len(one.lines) > 1 and re.search(rf"\$\{{?{name}\b", plain)))
    }


class _Found:
    """Values by name as they are found in a text."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._line = text, 0, 1
        self._lines: dict[str, dict[str, int]] = {}
        self._branched: dict[str, list[bool]] = {}

    def add(self, name: str, value: str, at: int, in_branch: bool) -> None:
        """at: where in the text; it grows from call to call."""
        self._line += self._text.count("\n", self._at, at)
        self._at = at
        lines = self._lines.setdefault(name, {})
        lines.pop(value, None)
        lines[value] = self._line
        self._branched.setdefault(name, []).append(in_branch)

    def places(self) -> dict[str, Places]:
        return {
            name: Places(lines, any(self._branched[name]), all(self._branched[name]))
            for name, lines in self._lines.items()
        }


class _Branches:
    """Where a text is inside of if or case."""

    def __init__(self, text: str) -> None:
        self._starts, self._depths = [0], [0]
        for mark in _BRANCH.finditer(text):
            self._starts.append(mark.start())
            self._depths.append(max(self._depths[-1] + (1 if mark[1] else -1), 0))

    def has(self, at: int) -> bool:
        return self._depths[bisect_right(self._starts, at) - 1] > 0


def _script(text: str) -> str:
    """The script with spaces instead of comments and continued lines, of the same length."""
    return _COMMENT.sub(lambda match: " " * len(match[0]), text).replace("\\\n", "  ")


def _assigned(text: str) -> Iterator[tuple[str, str, int, bool]]:
    """Each assignment: the variable, its value, where, and whether it is in a branch."""
    known: dict[str, str] = {}
    branches, end, depends = _Branches(text), 0, False
    for run in _SETS.finditer(text):
        # An assignment always succeeds, so what && joins to it runs, too.
        is_joined = run[1] in ("&&", "||")
        depends = is_joined and (depends or bool(text[end : run.start()].strip()))
        end = run.end()
        in_branch = depends or branches.has(run.start(2))
        for name, sum_of, *values in _SET.findall(run[2]):
            value = _computed(sum_of, known) if sum_of else _replaced(max(values), known)
            known[name] = value
            yield name, value, run.start(2), in_branch


def _of_script(text: str) -> dict[str, str]:
    text = _script(text)
    known = {name: value for name, value, _, _ in _assigned(text)}
    return {name: _replaced(raw, known) for name, raw, _ in _arguments(text)}


def _arguments(text: str) -> Iterator[tuple[str, str, int]]:
    """Each argument: its name, its value as it is there, and where."""
    words = list(_WORD.finditer(text))
    for at, word in enumerate(words):
        match = _ARGUMENT.fullmatch(word[0])
        if match is None:
            continue
        value = match[2]
        if value is None:
            after = words[at + 1] if at + 1 < len(words) else None
            value = ON
            # A closed quote or bracket ends the list of arguments.
            if after is not None and _OPENED.fullmatch(text, word.end(), after.start()):
                is_value = after[0][:1] != "-" or after[0][1:].isdigit()
                value = after[0] if is_value else ON
        yield _plain(match[1]), value, word.start()


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()


def _replaced(text: str, known: dict[str, str]) -> str:
    """The text with variables replaced by their values, or by their defaults."""

    def value(match: re.Match[str]) -> str:
        return known.get(match[1] or match[3]) or match[2] or match[0]

    for _ in range(DEPTH_MAX):
        changed = _VARIABLE.sub(value, text)
        if changed == text or len(changed) > 1_000:
            break
        text = changed
    return text


def _computed(text: str, known: dict[str, str]) -> str:
    """The value of $((A * B + 2)) of whole numbers; other arithmetic stays as it is."""
    if len(text) > ARITHMETIC_MAX:
        return f"$(({text}))"
    numbers = _replaced(_NAME.sub(lambda match: known.get(match[0], match[0]), text), known)
    if _NUMBERS.fullmatch(numbers):
        try:
            return str(_value(ast.parse(numbers.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ArithmeticError):
            pass
    return f"$(({text}))"


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("no sum, difference, product or quotient")
