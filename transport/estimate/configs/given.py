"""What a configuration file says about a model and a plan, and typed access to its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from transport.estimate.models import Model

INTEGER_MAX = 1 << 31
LAYERS_MAX = 4_096
SHOWN_MAX = 60  # characters of a value or a key in an error
Sizes: TypeAlias = Mapping[str, int]  # field of a model -> its value
# Field of a model, or "limit" -> the keys that may hold it; the first one that is there counts.
Names: TypeAlias = Mapping[str, tuple[str, ...]]


class ConfigError(ValueError):
    """A file that is no configuration, lacks a key, or asks for what is not estimated."""


@dataclass(frozen=True)
class Given:
    """What a file says.

    form: of the file, for people. model: None: the file has none. options: parameters of
    `weft estimate train`, by their Python names, with the values that the file gives them.
    gpus: of the job, which data parallel ranks follow from if options change the other degrees.
    accumulation: microbatches of a step in each data parallel replica; with a batch but without a
    micro-batch it gives the latter. taken: key -> what it became. unused: keys that change nothing.
    """

    form: str
    model: Model | None = None
    options: dict[str, Any] = field(default_factory=dict)
    accumulation: int | None = None
    taken: dict[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gpus: int | None = None


class Keys:
    """The values of a file by key. It notes which were taken, and as what.

    spelled: how the file writes a key, for errors.
    """

    def __init__(self, values: Mapping[str, Any], spelled: str = "{}") -> None:
        self._values, self._spelled = values, spelled
        self._used: set[str] = set()
        self.taken: dict[str, str] = {}

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def is_asked(self, key: str) -> bool:
        """Whether the key was looked for."""
        return key in self._used

    def value(self, key: str) -> Any:
        """The value of a key, which counts as used; None: not there."""
        self._used.add(key)
        return self._values.get(key)

    def number(self, *keys: str, name: str = "", least: int = 1) -> int | None:
        """The whole number of the first key that is there. name: what it becomes."""
        for key in keys:
            found = self.value(key)
            if found is None:
                continue
            if isinstance(found, float) and found.is_integer():
                found = int(found)
            if isinstance(found, bool) or not isinstance(found, int):
                raise ConfigError(f"{self.spell(key)}: {shown(found)} is no whole number")
            if not least <= found <= INTEGER_MAX:
                raise ConfigError(
                    f"{self.spell(key)}: {shown(found)}: must be {least} to {INTEGER_MAX:,}"
                )
            if name:
                self.take(key, name, found)
            return found
        return None

    def flag(self, key: str, default: bool = False) -> bool:
        found = self.value(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise ConfigError(f"{self.spell(key)}: {shown(found)} is neither true nor false")
        return found

    def text(self, key: str) -> str:
        found = self.value(key)
        return found.strip() if isinstance(found, str) else ""

    def take(self, key: str, name: str, value: object) -> None:
        """Notes that a key became the value of an option or a size."""
        self.taken[key] = f"{name} {value:,}" if type(value) is int else f"{name} {value}"

    def sizes(self, names: Names, sizes: Sizes, form: str) -> dict[str, int]:
        """The sizes that a model needs. sizes: those that count instead of the file's.

        ConfigError lists all that are missing.
        """
        found = {
            name: sizes[name] if name in sizes else self.number(*keys, name=name)
            for name, keys in names.items()
        }
        if (found.get("layers") or 0) > LAYERS_MAX:
            raise ConfigError(f"{found['layers']:,} layers: at most {LAYERS_MAX:,} are estimated")
        lacking = [name for name, size in found.items() if size is None]
        if lacking:
            keys = ", ".join(self.spell(names[name][0]) for name in lacking)
            options = " ".join(f"--{name.replace('_', '-')}" for name in lacking)
            raise ConfigError(f"{form} without {keys}: add it, or give {options}")
        return {name: size for name, size in found.items() if size is not None}

    def spell(self, key: str) -> str:
        return self._spelled.format(key)

    @property
    def unused(self) -> tuple[str, ...]:
        """Keys with a value that nothing looked at."""
        return tuple(
            self.spell(key)
            for key, one in self._values.items()
            if key not in self._used and one is not None
        )


def shown(value: object) -> str:
    """A value as an error shows it."""
    if isinstance(value, int) and abs(value) > 1 << 63:
        return "a number of more than 64 bits"
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def sequence_of(limit: int | None, most: int, notes: list[str]) -> int:
    """Tokens of a sequence, if only the longest that a model takes is known."""
    if limit is not None and limit <= most:
        return limit
    said = "the file has no length" if limit is None else f"the model takes up to {limit:,} tokens"
    notes.append(f"{said}: sequences of {most:,} are assumed: --sequence")
    return most
