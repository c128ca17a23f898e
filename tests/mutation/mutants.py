"""Makes mutants of a module: copies with one small change each, that tests should notice.

| kind | change |
|---|---|
| condition | the test of `if`, `while`, `x if c else y` or a comprehension is negated |
| operand | one operand of `and` or `or` is removed |
| and/or | `and` becomes `or`, and the reverse |
| boundary | `<` becomes `<=`, and so on |
| comparison | `==`, `is` or `in` is negated |
| arithmetic | `+` becomes `-`, and the reverse |
| number | an integer becomes one larger, or one smaller |
| boolean | `True` becomes `False`, and the reverse |
| statement | a call, an assignment to an attribute or item, or a jump is removed |
| return early | a function that returns nothing does nothing |
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass

_BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, slots=True)
class Change:
    """A node of a syntax tree, and the node that replaces it."""

    kind: str
    node: ast.AST
    new: ast.AST


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module."""

    name: str
    """Where and what: stable while the changed expression stays as it is."""
    line: int
    function: str
    """Qualified name of the outermost function whose body has the change; empty if none has."""
    change: Change
    module: ast.Module

    def make_tree(self) -> ast.Module:
        """Return the changed module."""
        memo = {id(self.change.node): self.change.new}
        return ast.fix_missing_locations(deepcopy(self.module, memo))


def make_mutants(source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of the source."""
    tree = ast.parse(source)
    changes = list(_find_changes(tree, ""))
    functions = dict(_find_functions(tree, ""))
    seen: Counter[str] = Counter()
    found = []
    for scope, change in changes:
        name = f"{scope}: {change.kind}: {_text(change.node)} -> {_text(change.new)}"
        seen[name] += 1
        if seen[name] > 1:
            name += f" #{seen[name]}"
        line: int = change.node.lineno  # type: ignore[attr-defined]
        found.append(Mutant(name, line, functions.get(change.node, ""), change, tree))
    return found


def _find_functions(node: ast.AST, scope: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield every node of the body of a function with the qualified name of the function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            name = scope + child.name
            yield child, name
            for statement in child.body:
                yield from ((each, name) for each in ast.walk(statement))
        elif isinstance(child, ast.ClassDef):
            yield from _find_functions(child, f"{scope}{child.name}.")


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef):
        return "pass" if isinstance(node.body[0], ast.Pass) else "body"
    first_line = ast.unparse(node).splitlines()[0]
    return first_line if len(first_line) <= 90 else first_line[:87] + "..."


def _find_changes(node: ast.AST, scope: str) -> Iterator[tuple[str, Change]]:
    """Yield every change below a node with the name of its function."""
    if isinstance(node, ast.Assert):
        return  # an assertion that holds always may say less
    if isinstance(node, ast.ClassDef) and any(_is_name(base, "Protocol") for base in node.bases):
        return
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        scope = f"{scope}.{node.name}" if scope else node.name
    is_initial = scope.endswith(".__init__")
    for change in _changes_of(node):
        if not (is_initial and isinstance(node, ast.Assign)):  # any use would notice it
            yield scope, change
    for name, child in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "keywords") and isinstance(
            node, ast.ClassDef | ast.FunctionDef | ast.AnnAssign | ast.arg
        ):
            continue
        for each in child if isinstance(child, list) else [child]:
            if isinstance(each, ast.AST):
                yield from _find_changes(each, scope)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _changes_of(node: ast.AST) -> Iterator[Change]:
    for find in _FINDERS:
        yield from find(node)


def _conditions(node: ast.AST) -> Iterator[Change]:
    tests: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        tests = [node.test]
    elif isinstance(node, ast.comprehension):
        tests = node.ifs
    for test in tests:
        if isinstance(test, ast.Compare) and type(test.ops[0]) in _OPPOSITES:
            continue  # `_comparisons` negates it
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield Change("condition", test, test.operand)
        else:
            yield Change("condition", test, ast.UnaryOp(ast.Not(), test))


def _operands(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield Change("and/or", node, ast.BoolOp(other, node.values))
        for number in range(len(node.values)):
            rest = node.values[:number] + node.values[number + 1 :]
            kept = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            yield Change("operand", node, kept)


def _comparisons(node: ast.AST) -> Iterator[Change]:
    if not isinstance(node, ast.Compare):
        return
    for number, operator in enumerate(node.ops):
        for kind, table in (("boundary", _BOUNDARIES), ("comparison", _OPPOSITES)):
            if type(operator) in table:
                ops = [*node.ops]
                ops[number] = table[type(operator)]()
                yield Change(kind, node, ast.Compare(node.left, ops, node.comparators))


def _arithmetic(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield Change("arithmetic", node, ast.BinOp(node.left, other, node.right))
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
        flipped = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield Change("arithmetic", node, ast.AugAssign(node.target, flipped, node.value))


def _constants(node: ast.AST) -> Iterator[Change]:
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield Change("boolean", node, ast.Constant(not node.value))
    elif isinstance(node.value, int | float):
        yield Change("number", node, ast.Constant(node.value + 1))
        yield Change("number", node, ast.Constant(node.value - 1))


def _statements(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete():
            yield Change("statement", node, ast.Pass())
        case ast.Continue() | ast.Break() | ast.Return(value=None):
            yield Change("statement", node, ast.Pass())
        case ast.Assign(targets=targets) if any(_is_stored(target) for target in targets):
            yield Change("statement", node, ast.Pass())


def _is_stored(target: ast.expr) -> bool:
    """Whether an assignment outlasts the function: to a local name, it is noticed at once."""
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return all(isinstance(part, ast.Attribute | ast.Subscript) for part in parts)


def _functions(node: ast.AST) -> Iterator[Change]:
    if not isinstance(node, ast.FunctionDef) or not _returns_nothing(node):
        return
    if node.name != "__init__" and any(not _is_docstring(each) for each in node.body):
        empty = ast.FunctionDef(
            node.name, node.args, [ast.Pass()], node.decorator_list, node.returns
        )
        yield Change("return early", node, empty)


def _returns_nothing(function: ast.FunctionDef) -> bool:
    return isinstance(function.returns, ast.Constant) and function.returns.value is None


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


_FINDERS: tuple[Callable[[ast.AST], Iterator[Change]], ...] = (
    _conditions,
    _operands,
    _comparisons,
    _arithmetic,
    _constants,
    _statements,
    _functions,
)
