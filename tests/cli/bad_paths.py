"""Gives every option of `weft` that takes a path bad paths, and prints what went wrong, as JSON.

python -m tests.cli.bad_paths FOLDER. The process must not be able to look into FOLDER/locked:
`test_paths.py` takes root's right to do so away.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import click

from transport.cli import invoke, weft

LIMIT_S = 60  # a command that is given a bad path and runs on has accepted it
PATH_METAVARS = ("FILE", "DIR", "FOLDER")
# Values of other parameters, without which a command is not called at all.
WORDS = {
    "operation": "AllReduce",
    "model": "llama3-8b",
    "models": "llama3-8b",
    "policies": "swift",
    "policy": "window/fixed",
    "sql": "SELECT 1",
    "cmd": "true",
}
# Options that a command needs to end by itself.
ENDING = {
    "diagnose": ["--live", "--count", "1"],
    "top": ["--count", "1"],
    "metrics": ["--port", "0"],
    "plan watch": ["--count", "1"],
}


# A link that leads nowhere is replaced by the file, a folder for a trace is made, and a job that is
# watched may make its folder later.
GOOD = {("OutputFile", "a loop of links"), ("OutputFolder", "below nothing")}


def is_good(name: str, parameter: click.Parameter, kind: str) -> bool:
    if (name, parameter.name) == ("diagnose", "folder"):
        return kind in ("a loop of links", "empty")
    return (type(parameter.type).__name__, kind) in GOOD


def commands(one: click.Command, names: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(one, click.Group):
        yield " ".join(names), one
        return
    context = click.Context(one)
    for name in one.list_commands(context):
        found = one.get_command(context, name)
        assert found is not None
        yield from commands(found, (*names, name))


def takes_path(parameter: click.Parameter) -> bool:
    metavar = (parameter.metavar or "").upper()
    return isinstance(parameter.type, click.Path) or any(one in metavar for one in PATH_METAVARS)


def bad_paths(folder: Path) -> dict[str, str]:
    """Kind -> a path of that kind, which is neither a good file nor a good folder."""
    (folder / "locked").mkdir(mode=0o000, exist_ok=True)
    (folder / "file").write_text("not what any command reads\n")
    (folder / "secret").write_text("x")
    (folder / "secret").chmod(0o000)
    with contextlib.suppress(FileExistsError):
        (folder / "loop").symlink_to(folder / "loop")
    return {
        "below a locked folder": str(folder / "locked" / "x"),
        "below a file": str(folder / "file" / "x"),
        "below nothing": str(folder / "none" / "x"),
        "a loop of links": str(folder / "loop"),
        "too long": str(folder / ("x" * 300)),
        "not readable": str(folder / "secret"),
        "empty": "",
    }


def words_of(command: click.Command, chosen: click.Parameter, path: str, good: Path) -> list[str]:
    """Arguments: the bad path for one parameter, something else for those that must be given."""
    options: list[str] = []
    arguments: list[str] = []
    for one in command.params:
        value = path if one is chosen else WORDS.get(one.name or "", str(good / "file"))
        if one is not chosen and not one.required:
            continue
        if isinstance(one, click.Argument):
            arguments.append(value)
        else:
            options += [one.opts[-1], value]
    return [*options, *arguments]


def complaint(words: list[str], path: str) -> str:
    """What is wrong with how a command refuses a path; "": nothing."""
    said = io.StringIO()
    signal.alarm(LIMIT_S)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            status = invoke(words)
    except BaseException:
        return traceback.format_exc(limit=-3)
    finally:
        signal.alarm(0)
    lines = [line for line in said.getvalue().splitlines() if line.startswith("weft: ")]
    if status not in (1, 2) or len(lines) != 1:
        return f"status {status}, {said.getvalue()!r}"
    return ""


def main() -> None:
    folder = Path(sys.argv[1])
    os.chdir(folder)
    kinds = bad_paths(folder)
    tried = 0
    wrong: list[str] = []
    for name, command in commands(weft, ()):
        for parameter in filter(takes_path, command.params):
            for kind, path in kinds.items():
                if is_good(name, parameter, kind):
                    continue
                words = words_of(command, parameter, path, folder)
                given = [*name.split(), *ENDING.get(name, []), *words]
                tried += 1
                said = complaint(given, path)
                if said:
                    wrong.append(f"{kind}: weft {' '.join(given)}: {said}")
    print(json.dumps({"tried": tried, "wrong": wrong}))


if __name__ == "__main__":
    main()
