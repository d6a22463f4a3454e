"""Loads policies from files and gives access to their source text.

A file is read once, so that the same text is run, checked, hashed and compiled even if the file
changes meanwhile, or if Python has outdated byte code of it.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import stat
import types
from pathlib import Path

from congestion.api import Policy
from transport import trusted
from transport.compiler.errors import PolicyError

_texts: dict[str, str] = {}  # the text of each loaded file, by resolved path


def load(policy_or_path: Policy | str | Path) -> Policy:
    """Returns `policy` itself, or loads the POLICY that a file declares."""
    if isinstance(policy_or_path, Policy):
        return policy_or_path
    path = Path(policy_or_path).resolve()
    if not path.is_file():
        raise PolicyError(str(path), 0, "no such file", "give the path of a policy file")
    if path.suffix != ".py":
        raise PolicyError(str(path), 0, "not a Python file", "give a file that ends in .py")
    text = _read_trusted(path)
    module = types.ModuleType(f"policy_{path.stem}")
    module.__file__ = str(path)
    try:
        exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    except SyntaxError as error:
        line = error.lineno if error.filename == str(path) else _line_in(error, path)
        raise PolicyError(str(path), line or 0, f"syntax: {error.msg}", "correct it") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a user's file may raise anything, even SystemExit
        raise PolicyError(
            str(path),
            _line_in(error, path),
            f"{type(error).__name__}: {error}",
            "a policy file must import cleanly",
        ) from error
    _texts[str(path)] = text
    policy = getattr(module, "POLICY", None)
    if not isinstance(policy, Policy):
        raise PolicyError(
            str(path),
            0,
            "no POLICY is declared",
            'end the file with POLICY = window_policy("name", ...)',
        )
    return policy


def _read_trusted(path: Path) -> str:
    """The text of a file that is about to run: no other user may have written it."""
    try:
        # Others can add files to a directory such as /tmp, but cannot replace this file.
        if not path.parent.stat().st_mode & stat.S_ISVTX:
            trusted.check_directory(path.parent, what="the folder of the policy")
        with trusted.open_file(path, what="the policy") as file:
            return file.read().decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(str(path), error) from None
    except trusted.UntrustedError as error:
        raise PolicyError(str(path), 0, str(error), "or use a copy of your own") from None


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise PolicyError(
            file, 0, f"cannot be read: {error.strerror}", "check its path and permissions"
        ) from None
    except UnicodeDecodeError as error:
        raise _not_utf8(file, error) from None


def _not_utf8(file: str, error: UnicodeDecodeError) -> PolicyError:
    return PolicyError(file, 0, f"not UTF-8 at byte {error.start}", "save it as UTF-8")


def _line_in(error: BaseException, path: Path) -> int:
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def text_of(file: str) -> str:
    """The text that was loaded from the file, or the file's current text if Python imported it."""
    return _texts[file] if file in _texts else _read(file)


def sha256(policy: Policy) -> str:
    """The SHA-256 of the text that declares the policy."""
    return hashlib.sha256(text_of(policy.module).encode()).hexdigest()


def is_current(code: types.CodeType) -> bool:
    """Whether a function's byte code matches the text of its file.

    Python may run outdated byte code, because it does not notice a second change of a file within
    a second.
    """
    fresh = _codes(code.co_filename, text_of(code.co_filename)).get(
        (code.co_name, code.co_firstlineno)
    )
    return fresh is not None and (
        fresh.co_code,
        _comparable(fresh.co_consts),
        fresh.co_names,
    ) == (code.co_code, _comparable(code.co_consts), code.co_names)


def _comparable(constants: tuple[object, ...]) -> tuple[object, ...]:
    """The constants with floats as text, because NaN is not equal to itself."""
    return tuple(
        _comparable(one)
        if isinstance(one, tuple)
        else repr(one)
        if isinstance(one, (float, complex))
        else one
        for one in constants
    )


def global_names(function: types.FunctionType) -> list[str]:
    """The global names that a function uses, each once, without names of attributes."""
    loads = (
        str(step.argval)
        for step in dis.get_instructions(function)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )
    return list(dict.fromkeys(loads))


@functools.lru_cache(maxsize=64)
def _codes(file: str, text: str) -> dict[tuple[str, int], types.CodeType]:
    found: dict[tuple[str, int], types.CodeType] = {}
    waiting = [compile(text, file, "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        found[code.co_name, code.co_firstlineno] = code
        waiting += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return found
