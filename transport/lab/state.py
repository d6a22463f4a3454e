"""State files of labs, through which any process can change or remove a lab.

A file is written before its lab is built, and removed after the lab is gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transport import trusted
from transport.ground import created
from transport.ground.text import nearest
from transport.lab.model import LabError, LabModel, LabModelError, Link, as_dict, from_dict

VERSION = 1
WAIT_S, STEP_S = 60.0, 0.05


@dataclass
class Changed:
    """The current state of a link that differs from the model."""

    link: Link
    cut: str = ""  # "" (not cut), "silent" (drops packets) or "down" (no carrier)


@dataclass
class State:
    """The state of a lab, shared by all processes."""

    name: str
    model: LabModel
    built: bool = False
    maps: tuple[int, int] = (0, 0)  # ids of the BPF maps: configuration, state
    checksums: bool = False  # hosts write real checksums, so that receivers detect corruption
    changed: dict[str, Changed] = field(default_factory=dict)

    def link(self, name: str) -> Link:
        changed = self.changed.get(name)
        return changed.link if changed else self.model.link(name)

    def cut(self, name: str) -> str:
        changed = self.changed.get(name)
        return changed.cut if changed else ""


def directory() -> Path:
    """The folder of the state files: /run/weft/lab, or one of the user if /run is read-only."""
    own = os.environ.get("XDG_RUNTIME_DIR")
    if os.geteuid() != 0 and own and not os.access("/run", os.W_OK):
        return Path(own) / "weft" / "lab"
    return Path("/run/weft/lab")


def names() -> list[str]:
    """The names of all labs."""
    return sorted(path.stem for path in directory().glob("*.json"))


@contextmanager
def lock() -> Iterator[None]:
    """Locks all labs against other changes; the lock ends when its process dies."""
    where = directory()
    where.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabError(
                        "another weft lab command has held the lock for a minute: wait or end it"
                    ) from None
                time.sleep(STEP_S)
        for part in where.glob(".*.json.*"):  # left by a process that died while writing
            part.unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)


def load(name: str) -> State:
    """Loads the state of a lab by name."""
    path = directory() / f"{name}.json"
    if not path.exists():
        known = names()
        there = nearest(name, known) if known else "; no lab is up: weft lab up makes one"
        raise LabModelError(f"there is no lab named {name}{there}")
    try:
        # Root changes and removes what the file names, so other users must not be able to write it.
        with trusted.open_file(path, what="the state file") as file:
            content = json.load(file)
    except trusted.UntrustedError as error:
        raise LabError(str(error)) from None
    except ValueError as error:
        raise damaged(path, error) from None
    try:
        return _state(path, content)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> LabError:
    return LabError(
        f"{path} is damaged ({error!r}): remove it, and the namespaces weft-{path.stem}-*"
    )


def _state(path: Path, content: Any) -> State:
    if content["version"] != VERSION:
        raise LabError(f"{path} is from another version of weft: remove the lab with that version")
    return State(
        name=content["name"],
        model=from_dict(content["model"]),
        built=content["built"],
        maps=(content["maps"][0], content["maps"][1]),
        checksums=content["checksums"],
        changed={
            name: Changed(Link(**one["link"]), one["cut"])
            for name, one in content["changed"].items()
        },
    )


def save(state: State) -> None:
    """Writes the state of a lab atomically."""
    path = directory() / f"{state.name}.json"
    content = {
        "version": VERSION,
        "name": state.name,
        "model": as_dict(state.model),
        "built": state.built,
        "maps": state.maps,
        "checksums": state.checksums,
        "changed": {
            name: {"link": vars(one.link), "cut": one.cut} for name, one in state.changed.items()
        },
    }
    created.replace(path, json.dumps(content, indent=1), durable=True)


def forget(name: str) -> None:
    (directory() / f"{name}.json").unlink(missing_ok=True)
