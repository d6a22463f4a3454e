"""Finds Megatron-LM's arguments in a shell script, in YAML, or in what Megatron prints at start.

Values stay text; of a script, variables that it sets itself are replaced.
"""

from __future__ import annotations

import re
from math import prod

DEPTH_MAX = 8  # of variables that stand for variables
ON, OFF = "true", "false"
_PRINTED = re.compile(r"^\s*(\w+) \.{2,} ?(.*)$", re.M)
_LINE = re.compile(
    r"^[ \t]*(?:- )?(?:--)?([A-Za-z][\w-]*):[ \t]*([^\n#]*?)[ \t]*(?:#[^\n]*)?$", re.M
)
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")
_SET = re.compile(
    r"^[ \t]*(?:export[ \t]+|local[ \t]+)?([A-Za-z_]\w*)="
    r"""(?:\$\(\(([^()\n]*)\)\)|"([^"\n]*)"|'([^'\n]*)'|([^\s;#"'(]*))""",
    re.M,
)
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


def _of_script(text: str) -> dict[str, str]:
    text = _COMMENT.sub("", text.replace("\\\n", " "))
    known: dict[str, str] = {}
    for name, product, *values in _SET.findall(text):
        known[name] = _product(product, known) if product else _replaced(max(values), known)
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


def _product(text: str, known: dict[str, str]) -> str:
    """The value of $((A * B)); other arithmetic stays as it is."""
    factors = [one.strip() for one in text.split("*")]
    values = [_replaced(one if one[:1] == "$" else known.get(one, one), known) for one in factors]
    if all(one.isdecimal() and len(one) < 10 for one in values):
        return str(prod(map(int, values)))
    return f"$(({text}))"
