"""Decides what a policy's source is: a declared policy, or a file that declares one.

Never touches the compiler proper.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from congestion.api import Policy
from transport.compiler.errors import PolicyError


def load(policy_or_path: Policy | str | Path) -> Policy:
    """The policy itself, or the one that a file declares as POLICY."""
    if isinstance(policy_or_path, Policy):
        return policy_or_path
    path = Path(policy_or_path).resolve()
    if not path.is_file():
        raise PolicyError(str(path), 0, "there is no such file", "give the path of a policy file")
    spec = importlib.util.spec_from_file_location(f"policy_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PolicyError(str(path), 0, "not a Python file", "give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise PolicyError(
            str(path), error.lineno or 0, f"syntax: {error.msg}", "correct it"
        ) from error
    except Exception as error:  # whatever a stranger's module raises is a refusal with a place
        line = _line_in(error, path)
        raise PolicyError(
            str(path), line, f"{type(error).__name__}: {error}", "a policy file must import cleanly"
        ) from error
    policy = getattr(module, "POLICY", None)
    if not isinstance(policy, Policy):
        raise PolicyError(
            str(path),
            0,
            "no POLICY is declared",
            'end the file with POLICY = window_policy("name", ...)',
        )
    return policy


def _line_in(error: BaseException, path: Path) -> int:
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def sha256(policy: Policy) -> str:
    """Of the file that declares the policy."""
    return hashlib.sha256(Path(policy.module).read_bytes()).hexdigest()
