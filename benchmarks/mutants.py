"""Small faults planted into reference functions, one at a time, by rewriting their syntax trees.

A mutant is one changed expression in a contract's reference or in a private function of the same module that it calls.
What validates (an ``if`` that does nothing but raise, and functions named ``_require...``) is left alone: cases hold
valid inputs, and refusals have tests of their own. So are defaults, annotations and texts.
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
_ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_TWINS = ("amax amin", "max min", "maximum minimum", "argmax argmin", "any all", "ceil floor", "cumsum cumprod",
          "sin cos", "sum prod")  # fmt: skip
_OTHER_NAME = {one: other for pair in _TWINS for one, other in (pair.split(), pair.split()[::-1])}
_DROPPED = ("abs", "clamp", "nan_to_num", "sqrt", "square", "neg", "roll", "flip")
_ROUNDED = ("bfloat16", "round")

#: Kinds in the order in which they take turns; the first ones are those that distinguish kernels most often.
KINDS = ("comparison", "constant", "arithmetic", "where", "twin", "rounding", "dropped call", "nan", "negation", "flag")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted fault.

    Attributes:
        operator: name of the contract.
        function: the function that is changed.
        kind: one of `KINDS`.
        change: the expression before and after, as text.
        line: its line in the module.
        build: returns the reference with the fault.
    """

    operator: str
    function: str
    kind: str
    change: str
    line: int
    build: Callable[[], Callable[..., Any]]

    @property
    def key(self) -> str:
        """Names the mutant whatever its line: ``function: before => after``."""
        return f"{self.function}: {self.change}"


def mutants_of(operator: str, reference: Callable[..., Any], count: int = 10) -> list[Mutant]:
    """Return up to `count` mutants of a reference: the kinds take turns, each spread evenly over the source."""
    module = sys.modules[reference.__module__]
    tree = ast.parse(inspect.getsource(module))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    by_kind: dict[str, list[Mutant]] = {kind: [] for kind in KINDS}
    seen: dict[str, int] = {}
    for name in _reached(reference.__name__, functions):
        for index, (kind, before, after) in enumerate(_changes(functions[name])):
            change = f"{ast.unparse(before)} => {ast.unparse(after)}"
            number = seen[name + change] = seen.get(name + change, 0) + 1
            text = change if number == 1 else f"{change} (#{number})"
            build = _builder(module, tree, name, index, reference.__name__)
            by_kind[kind].append(Mutant(operator, name, kind, text, before.lineno, build))
    quota = dict.fromkeys(KINDS, 0)
    while sum(quota.values()) < min(count, sum(map(len, by_kind.values()))):
        for kind in KINDS:
            if quota[kind] < len(by_kind[kind]) and sum(quota.values()) < count:
                quota[kind] += 1
    return [items[i * len(items) // quota[kind]] for kind, items in by_kind.items() for i in range(quota[kind])]


def _reached(start: str, functions: dict[str, ast.FunctionDef]) -> list[str]:
    """Return the reference and the private functions of its module that it calls, directly or not."""
    found, waiting = [], [start]
    while waiting:
        name = waiting.pop(0)
        if name in found or name not in functions or (name != start and name.startswith("_require")):
            continue
        found.append(name)
        waiting += [
            node.id for node in ast.walk(functions[name])
            if isinstance(node, ast.Name) and node.id in functions and isinstance(node.ctx, ast.Load)
        ]  # fmt: skip
    return found


def _changes(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Yield (kind, expression, changed expression) in the order of the source."""
    for node in _expressions(function.body):
        for kind, changed in _changed(node):
            yield kind, node, ast.fix_missing_locations(ast.copy_location(changed, node))


def _expressions(body: list[ast.stmt]) -> Iterator[ast.expr]:
    for statement in body:
        if isinstance(statement, ast.If) and not statement.orelse and _only_refuses(statement.body):
            continue
        if isinstance(statement, (ast.Raise, ast.Assert)) or _is_text(statement) or _is_refusal(statement):
            continue
        annotation = statement.annotation if isinstance(statement, ast.AnnAssign) else None
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.expr) and child is not annotation:
                yield from (
                    node for node in ast.walk(child) if isinstance(node, ast.expr) and not _in_text(node, child)
                )
        for block in ("body", "orelse"):
            if not isinstance(statement, ast.expr) and hasattr(statement, block):
                yield from _expressions(getattr(statement, block))


def _only_refuses(body: list[ast.stmt]) -> bool:
    """Whether statements compute what an error says, at most, and raise it."""
    last = body[-1]
    raises = isinstance(last, ast.Raise) or (isinstance(last, ast.If) and not last.orelse and _only_refuses(last.body))
    return raises and all(isinstance(item, ast.Assign) for item in body[:-1])


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_refusal(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id.startswith("_require")


def _in_text(node: ast.expr, root: ast.expr) -> bool:
    return any(node in ast.walk(text) for text in ast.walk(root) if isinstance(text, ast.JoinedStr))


def _changed(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        yield "comparison", ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield "arithmetic", ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield "negation", node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call):
        yield from _changed_call(node)


def _changed_call(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    name = (
        node.func.attr
        if isinstance(node.func, ast.Attribute)
        else node.func.id
        if isinstance(node.func, ast.Name)
        else ""
    )
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    on_torch = isinstance(owner, ast.Name) and owner.id == "torch"
    if name == "where" and len(node.args) == 3:
        yield "where", ast.Call(node.func, [node.args[0], node.args[2], node.args[1]], node.keywords)
    if name in _OTHER_NAME:
        twin = ast.Attribute(owner, _OTHER_NAME[name], ast.Load()) if owner else ast.Name(_OTHER_NAME[name], ast.Load())
        yield "twin", ast.Call(twin, node.args, node.keywords)
    if name in _ROUNDED and owner is not None and not on_torch and not node.args:
        yield "rounding", ast.Call(ast.Name(f"_{name}_toward_zero", ast.Load()), [owner], [])
    if name == "round_bf16":
        yield "rounding", ast.Call(ast.Name("_round_bf16_toward_zero", ast.Load()), node.args, node.keywords)
    if name in _DROPPED and owner is not None and not on_torch:
        yield "dropped call", owner
    if name in ("isnan", "isfinite") and owner is not None and not on_torch:
        value = ast.Constant(name == "isfinite")
        yield "nan", ast.Call(ast.Name("_full_bool", ast.Load()), [owner, value], [])
    for position, keyword in enumerate(node.keywords):
        flag = isinstance(keyword.value, ast.Constant) and type(keyword.value.value) is bool
        # an unstable sort is stable where torch's happens to be, and a strict zip only finds a fault of the author
        if flag and keyword.arg not in ("stable", "strict"):
            flags = [*node.keywords]
            flags[position] = ast.keyword(keyword.arg, ast.Constant(not ast.literal_eval(keyword.value)))
            yield "flag", ast.Call(node.func, node.args, flags)


def _builder(module: Any, tree: ast.Module, name: str, index: int, reference: str) -> Callable[[], Callable[..., Any]]:
    def build() -> Callable[..., Any]:
        changed = copy.deepcopy(tree)
        body = [node for node in changed.body if isinstance(node, ast.FunctionDef)]
        function = next(node for node in body if node.name == name)
        _, before, after = next(item for position, item in enumerate(_changes(function)) if position == index)
        ast.fix_missing_locations(_Replace(before, after).visit(function))
        namespace = {**vars(module), **_HELPERS}
        future = [node for node in changed.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        code = compile(ast.Module([*future, *body], []), f"<mutant of {module.__name__}>", "exec")
        exec(code, namespace)
        mutant: Callable[..., Any] = namespace[reference]
        return mutant

    return build


class _Replace(ast.NodeTransformer):
    def __init__(self, before: ast.expr, after: ast.expr) -> None:
        self.before, self.after = before, after

    def visit(self, node: ast.AST) -> Any:
        return self.after if node is self.before else super().visit(node)


def _bfloat16_toward_zero(x: Any) -> Any:
    bits = x.float().contiguous().view(torch.int32) & -0x10000
    return torch.where(x.isfinite(), bits.view(torch.float32).view(x.shape), x.float()).bfloat16()


_HELPERS = {
    "_bfloat16_toward_zero": _bfloat16_toward_zero,
    "_round_bf16_toward_zero": lambda x: _bfloat16_toward_zero(x).float(),
    "_round_toward_zero": lambda x: x.trunc(),
    "_full_bool": lambda x, value: torch.full_like(x, value, dtype=torch.bool),
}
