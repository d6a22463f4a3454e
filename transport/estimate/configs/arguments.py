"""Finds Megatron-LM's arguments in a shell script, in YAML, or in what Megatron prints at start.

Values stay text; of a script, variables that it sets itself are replaced.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator

ARITHMETIC_MAX = 200  # characters
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
    r"(?:^|[;&]|\b(?:then|else|do|export|local|readonly)\b)[ \t]*"
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


def branches_of(text: str) -> dict[str, list[str]]:
    """Variable of a script -> its different numbers, of which a branch decides; the last counts."""
    text = _script(text)
    found: dict[str, list[str]] = {}
    branched: set[str] = set()
    for name, value, at in _assigned(text):
        if value.isdecimal():
            values = found.setdefault(name, [])
            values[:] = [*(one for one in values if one != value), value]
        if at:
            branched.add(name)
    return {
        name: values
        for name, values in found.items()
        if name in branched and len(values) > 1 and re.search(rf"\$\{{?{name}\b", text)
    }


def _script(text: str) -> str:
    return _COMMENT.sub("", text.replace("\\\n", " "))


def _assigned(text: str) -> Iterator[tuple[str, str, bool]]:
    """Each assignment: the variable, its value, and whether it is in a branch of if or case."""
    known: dict[str, str] = {}
    marks = list(_BRANCH.finditer(text))
    seen = depth = 0
    for run in _SETS.finditer(text):
        while seen < len(marks) and marks[seen].start() < run.start(1):
            depth = max(depth + (1 if marks[seen][1] else -1), 0)
            seen += 1
        for name, sum_of, *values in _SET.findall(run[1]):
            value = _computed(sum_of, known) if sum_of else _replaced(max(values), known)
            known[name] = value
            yield name, value, depth > 0


def _of_script(text: str) -> dict[str, str]:
    text = _script(text)
    known = {name: value for name, value, _ in _assigned(text)}
    found: dict[str, str] = {}
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
        found[_plain(match[1])] = _replaced(value, known)
    return found


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
