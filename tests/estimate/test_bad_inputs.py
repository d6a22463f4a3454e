"""Tests that no value of an option of `weft estimate` ends in a traceback, whatever it is."""

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from transport.cli import weft

# Values that no option takes, or that few do: no number, signs, huge, empty, no files.
VALUES = ("", "pigeons", "-1", "0", "nan", "1e999", "99999999999999999999", "no/such/file", "a\nb")
# Command -> what it needs besides the option.
NEEDED = {
    "collective": ("all_reduce", "--size", "8"),
    "compare": ("8 x h100 nvlink4",),
    "plan": ("gpt2", "--gpus", "8", "--batch", "8"),
    "tolerate": ("gpt2", "--gpus", "8"),
    "train": ("gpt2",),
}


def commands() -> dict[str, click.Command]:
    group = weft.get_command(click.Context(weft), "estimate")
    assert isinstance(group, click.Group)
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: one for name, one in found.items() if one is not None}


def options(name: str) -> list[str]:
    """Options that take a value."""
    return [
        one.opts[-1]
        for one in commands()[name].params
        if isinstance(one, click.Option) and not one.is_flag
    ]


def fails_in_words(words: tuple[str, ...]) -> str | None:
    """What is wrong with how the command ends: a traceback, or an error without words."""
    done = CliRunner().invoke(weft, ["estimate", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"{words}: {type(done.exception).__name__}: {done.exception}"
    if done.exit_code and "Error" not in done.output:
        return f"{words}: status {done.exit_code} without a word: {done.output!r}"
    return None


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_options__bad_values_are_errors_in_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least 150 in all: each value for each option that takes one."""
    monkeypatch.chdir(tmp_path)
    tried = [(name, *NEEDED[name], option, value) for option in options(name) for value in VALUES]
    assert len(tried) >= 30
    assert not [said for words in tried if (said := fails_in_words(words))]


@pytest.mark.parametrize("name", sorted(commands()))
def test_arguments__bad_values_are_errors_in_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no file of weft")
    (tmp_path / "bytes").write_bytes(os.urandom(1_000))
    (tmp_path / "empty").touch()
    for value in (*VALUES, "text", "bytes", "empty", "."):
        assert fails_in_words((name, value)) is None


# Each option or argument of a file, as FILE.
FILES = (
    ("train", "FILE"),
    ("train", "gpt2", "--config", "FILE"),
    ("train", "gpt2", "--gpus-file", "FILE"),
    ("train", "gpt2", "--links-file", "FILE"),
    ("train", "gpt2", "--network", "FILE"),
    ("train", "gpt2", "--computation", "FILE"),
    ("plan", "FILE", "--gpus", "8", "--batch", "8"),
    ("tolerate", "FILE", "--gpus", "8"),
    ("simulate", "FILE"),
    ("compare", "8 x a100", "--gpus-file", "FILE"),
    ("collective", "all_reduce", "--ranks", "8", "--network", "FILE"),
    ("hlo", "FILE"),
    ("graph", "FILE"),
    ("tune", "FILE", "-o", "tuned.txt"),
    ("calibrate", "FILE", "-o", "mine.toml"),
    ("check", "FILE", "--network", "FILE"),
    ("overlap", "FILE"),
)
BROKEN = {
    "cut.json": b'{"model_type": "llama", "rows": [1, 2',
    "types.json": b'{"model_type": 5, "rows": {}, "traceEvents": 1, "schema": "x", "nodes": 7}',
    "list.json": b"[1]",
    "empty.json": b"",
    "cut.toml": b"[model\nname =",
    "types.toml": b"between = 5\n[links]\nname = 3\n",
    "empty.toml": b"",
    "bytes.json": bytes(range(256)),
    "zeros.json": bytes(1 << 16),
    "large.json": b"",  # 300 MiB, without blocks on the disk
    "folder.json": b"",
}


@pytest.mark.parametrize("words", FILES, ids=" ".join)
def test_files__errors_name_the_file(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, data in BROKEN.items():
        if name == "folder.json":
            Path(name).mkdir()
            continue
        Path(name).write_bytes(data)
        if name == "large.json":
            os.truncate(name, 300 << 20)
    for name in BROKEN:
        given = [one.replace("FILE", name) for one in words]
        done = CliRunner().invoke(weft, ["estimate", *given])
        assert isinstance(done.exception, SystemExit), (name, done.exception)
        assert done.exit_code
        assert name in done.output.split("Error", 1)[1], (name, done.output)
