"""The policy language as tables: the Python that a hook may use, and remedies for other code."""

from __future__ import annotations

import ast
from collections.abc import Mapping

STEPS_MAX = 65_536  # maximum number of loop steps of a hook, which block the engine for about 50 us
CALLS_MAX = 1_000
INT64_MAX = (1 << 63) - 1
BUILTINS = frozenset({"int", "float", "min", "max", "abs", "len", "range"})
MATH = frozenset(
    {"sqrt", "exp", "log", "fabs", "isnan", "isinf", "isfinite", "pi", "e", "tau", "inf"}
)
ERRORS = frozenset(
    {
        "ValueError",
        "ArithmeticError",
        "RuntimeError",
        "AssertionError",
        "IndexError",
        "OverflowError",
        "ZeroDivisionError",
    }
)
READ_ONLY = frozenset({"event", "params"})

# The allowed syntax nodes. All others are refused; REMEDIES says what to write instead.
ALLOWED: tuple[type[ast.AST], ...] = (
    ast.arguments,
    ast.arg,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.If,
    ast.For,
    ast.Break,
    ast.Continue,
    ast.Return,
    ast.Pass,
    ast.Expr,
    ast.Raise,
    ast.Assert,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Name,
    ast.Attribute,
    ast.Subscript,
    ast.Constant,
    ast.Call,
    ast.Tuple,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)
REMEDIES: Mapping[type[ast.AST], tuple[str, str]] = {
    ast.While: ("while has no bound", "loop over a constant range and break"),
    ast.Try: ("exceptions cannot be caught", "test the condition before"),
    ast.With: ("with is not supported", "remove it"),
    ast.Import: ("import inside a hook", "import at the top of the file"),
    ast.ImportFrom: ("import inside a hook", "import at the top of the file"),
    ast.Global: ("a global cannot be written", "keep the value in the flow record"),
    ast.Nonlocal: ("an outer variable cannot be written", "keep the value in the flow record"),
    ast.List: ("a list needs the heap", "use a tuple field of a record"),
    ast.Dict: ("a dict needs the heap", "use fields of a record"),
    ast.Set: ("a set needs the heap", "use fields of a record"),
    ast.ListComp: ("a comprehension needs the heap", "loop over a constant range"),
    ast.SetComp: ("a comprehension needs the heap", "loop over a constant range"),
    ast.DictComp: ("a comprehension needs the heap", "loop over a constant range"),
    ast.GeneratorExp: ("a generator needs the heap", "loop over a constant range"),
    ast.Lambda: ("a function inside a function", "define it at the top of the file"),
    ast.FunctionDef: ("a function inside a function", "define it at the top of the file"),
    ast.JoinedStr: ("a formatted string needs the heap", "use a plain message"),
    ast.Pow: ("** differs between interpreted and compiled", "write the product out"),
    ast.Is: ("is compares objects, not numbers", "use =="),
    ast.IsNot: ("is compares objects, not numbers", "use !="),
    ast.In: ("in needs a container", "compare with =="),
    ast.NotIn: ("in needs a container", "compare with !="),
    ast.MatMult: ("@ needs arrays", "loop over a constant range"),
}
GLOBAL_REMEDIES = {
    "random": "use event.rand",
    "time": "use event.now_ns",
    "print": "remove it",
    "round": "use int(x + 0.5)",
    "sum": "add in a loop",
    "pow": "write the product out",
    "bool": "compare with != 0",
    "open": "remove it",
}
