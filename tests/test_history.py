"""Tests that each commit says what it changes and why, from a base commit on.

python3 tests/test_history.py checks the commits after BASE, and with a file's name, the message in
that file (as git's hook commit-msg calls it). It needs no installation.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The commits before it are not judged.
BASE = "d6d8a18c"
SUBJECT_MAX = 72
SUBJECT = re.compile(r"[a-z][a-z0-9_/, -]*: [A-Z]\S* \S.*[^.]")
BODY_WORDS_MIN = 5
SCISSORS = "# ------------------------ >8 ------------------------"


def git(*words: str) -> str:
    """The output of git; CalledProcessError if it fails."""
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def breaches(message: str, *, is_rename: bool = False) -> Iterator[str]:
    """The faults of a commit message, a text each. is_rename: the commit only renames files."""
    subject, _, rest = message.strip("\n").partition("\n")
    if len(subject) > SUBJECT_MAX:
        yield f"the subject has {len(subject)} characters, {SUBJECT_MAX} at most"
    if not SUBJECT.fullmatch(subject):
        yield "the subject is not of the form 'room: Change one thing', without a full stop"
    if rest and not rest.startswith("\n"):
        yield "no empty line after the subject"
    if len(rest.split()) < BODY_WORDS_MIN and not is_rename:
        yield "no body that says why"


def typed(text: str) -> str:
    """The message in git's file, without the comments that git removes."""
    lines = text.partition(SCISSORS)[0].splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


def only_renames(commit: str) -> bool:
    """Whether the commit only renames files."""
    states = git("show", "--format=", "--name-status", "-M100%", commit).splitlines()
    return bool(states) and all(line.startswith("R100") for line in states)


def commits() -> list[str] | None:
    """The commits after BASE without merges; None if this copy does not have its history."""
    try:
        git("merge-base", "--is-ancestor", BASE, "HEAD")
        return git("rev-list", "--no-merges", f"{BASE}..HEAD").split()
    except (OSError, subprocess.CalledProcessError):
        return None


def history_breaches() -> Iterator[str]:
    """The faults of the messages of all commits after BASE, a text each."""
    for commit in commits() or []:
        message = git("show", "--no-patch", "--format=%B", commit)
        found = list(breaches(message))
        if found and only_renames(commit):
            found = list(breaches(message, is_rename=True))
        yield from (f"{commit[:8]} {message.splitlines()[0]}: {one}" for one in found)


def test_history__each_commit_says_why() -> None:
    assert list(history_breaches()) == []


def test_history__what_is_wrong_with_a_message() -> None:
    good = "core: Keep one list of flows\n\nTwo lists were walked on each acknowledgment.\n"
    assert list(breaches(good)) == []
    assert list(breaches("core: Move a file\n", is_rename=True)) == []
    for wrong, words in (
        ("core: Keep one list of flows\n", "no body"),
        ("core: Keep one list\nTwo lists were walked on each acknowledgment.\n", "no empty line"),
        ("Keep one list\n\nTwo lists were walked on each acknowledgment.\n", "room: Change"),
        ("core: keep one list\n\nTwo lists were walked on each acknowledgment.\n", "room: Change"),
        ("core: Keep one list.\n\nTwo lists were walked on each acknowledgment.\n", "full stop"),
        (good.replace("flows", "flows " * 10), "72 at most"),
    ):
        assert any(words in one for one in breaches(wrong)), wrong
    assert list(breaches(typed("# a comment\n" + good + f"{SCISSORS}\ndiff\n"))) == []


def main(arguments: list[str]) -> int:
    if arguments:
        found = list(breaches(typed(Path(arguments[0]).read_text())))
    else:
        found = list(history_breaches())
        if commits() is None:
            print(f"history: not judged, because this copy has no commit {BASE}")
    for one in found:
        print(one)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
