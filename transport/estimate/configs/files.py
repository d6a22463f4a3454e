"""Reads a configuration file of any known form, which its content tells."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from transport.estimate.configs.deepspeed import is_deepspeed, of_deepspeed
from transport.estimate.configs.given import ConfigError, Given, Sizes
from transport.estimate.configs.huggingface import of_huggingface
from transport.estimate.configs.megatron import is_megatron, of_megatron
from transport.estimate.configs.torchtitan import is_torchtitan, of_torchtitan
from transport.estimate.models import ALIASES, PRESETS
from transport.estimate.names import matched
from transport.ground.text import printable

FILE_BYTES_MAX = 4 << 20
SUFFIXES = {".json", ".toml", ".sh", ".bash", ".yaml", ".yml", ".txt", ".args", ".log"}
FORMS = "config.json of Hugging Face, Megatron-LM's arguments, torchtitan's TOML, DeepSpeed's JSON"


def is_file(model: str) -> bool:
    """Whether the name of a model is the path of a configuration file."""
    if "/" in model or Path(model).suffix.lower() in SUFFIXES:
        return True
    # A folder as it is named in the current one, unless a preset has this name.
    known = matched(model, (*PRESETS, *ALIASES)) in {*PRESETS, *ALIASES}
    return not known and (Path(model) / "config.json").is_file()


def read(file: Path, sizes: Sizes, has_model: bool = False) -> Given:
    """What a file says. ConfigError, with the file's path.

    sizes: of the model, which count instead of the file's. has_model: another model counts, so
    the file's is not read. A folder stands for its config.json.
    """
    try:
        if file.is_dir():
            if not (file / "config.json").exists():
                raise ConfigError(f"the folder has no config.json: give one of {FORMS}")
            file = file / "config.json"
        return _read(file, _text(file), sizes, has_model)
    except ConfigError as error:
        raise ConfigError(printable(f"{file}: {error}")) from None


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"is larger than {FILE_BYTES_MAX >> 20} MiB, the largest that is read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"is no text: give one of {FORMS}") from None


def _read(file: Path, text: str, sizes: Sizes, has_model: bool) -> Given:
    suffix = file.suffix.lower()
    if not text.strip():
        raise ConfigError(f"is empty: give one of {FORMS}")
    if text.lstrip().startswith("{") or suffix == ".json":
        return _of_json(text, sizes, has_model)
    if suffix == ".toml":
        try:
            table = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"is no TOML: {str(error)[:200]}") from None
        if not is_torchtitan(table):
            raise ConfigError(
                f"has no section model, training or parallelism of torchtitan: give one of {FORMS}"
            )
        return of_torchtitan(table, sizes, has_model)
    is_yaml = suffix in (".yaml", ".yml")
    if not is_megatron(text, is_yaml):
        raise ConfigError(f"has no argument of Megatron-LM, such as --num-layers: give {FORMS}")
    return of_megatron(text, is_yaml, sizes, has_model)


def _of_json(text: str, sizes: Sizes, has_model: bool) -> Given:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is no JSON: {str(error)[:200]}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"is no JSON object: give one of {FORMS}")
    if is_deepspeed(values):
        return of_deepspeed(values)
    if "model_type" in values or _is_nested(values):
        if has_model:
            raise ConfigError("is a model, and MODEL is another one: give one of them")
        return of_huggingface(values, sizes)
    raise ConfigError(
        "has neither model_type, as config.json of Hugging Face does, nor train_batch_size, "
        "zero_optimization or another key of DeepSpeed"
    )


def _is_nested(values: Mapping[str, object]) -> bool:
    return isinstance(values.get("text_config"), dict)
