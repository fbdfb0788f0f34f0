"""Mutants of a module: which there are, what they change, whether a process can take them up."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from random import Random

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.mutants.operators import OPERATORS
from tests.mutants.swap import fits

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mutant:
    """The n-th place of a module where an operator applies."""

    module: str  # path from the root of the repository
    operator: str
    occurrence: int

    @property
    def key(self) -> str:
        return f"{self.operator}:{self.occurrence}"


@dataclass(frozen=True, slots=True)
class Change:
    """What a mutant does to its source. `lines`: of the statement that holds it, first and last."""

    source: str
    line: int
    before: str
    after: str
    lines: tuple[int, int]
    in_function: bool  # only the code of functions differs: running functions can be given it


def mutants_of(module: str, source: str) -> list[Mutant]:
    nodes = list(ast_nodes(get_ast(source)))
    counts = {name: sum(1 for node in nodes for _ in op.mutation_positions(node)) for name, op in OPERATORS.items()}
    return [Mutant(module, name, index) for name, count in counts.items() for index in range(count)]


def sample(mutants: list[Mutant], size: int | None) -> list[Mutant]:
    """The first `size` of an order drawn from the module's name: large samples hold small ones."""
    shuffled = list(mutants)
    if shuffled:
        Random(shuffled[0].module).shuffle(shuffled)
    return shuffled[:size]


def apply(source: str, mutant: Mutant) -> Change | None:
    """None: the text that comes out is no Python, or means the same (a change within a type)."""
    text = mutate_code(source, OPERATORS[mutant.operator], mutant.occurrence)
    try:
        old, new = ast.parse(source), ast.parse(text or source)
    except SyntaxError:
        return None
    if text is None or _dump(old, _WithoutTypes()) == _dump(new, _WithoutTypes()):
        return None
    line, before, after = _difference(source, text)
    in_function = _shape(source) == _shape(text) and fits(source, text)
    return Change(text, line, before, after, _statement(ast.parse(source), line), in_function)


def _difference(old: str, new: str) -> tuple[int, str, str]:
    """The first line that differs, and the lines that differ before and after."""
    a, b = old.splitlines(), new.splitlines()
    blocks = [code for code in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes() if code[0] != "equal"]
    first, last = blocks[0], blocks[-1]
    return first[1] + 1, _text(a[first[1] : last[2]]), _text(b[first[3] : last[4]])


def _text(lines: list[str]) -> str:
    return "\n".join(line.strip() for line in lines)


def _statement(tree: ast.Module, line: int) -> tuple[int, int]:
    """The lines of the smallest statement around a line; of one with a body, those of its head."""
    heads = [_head(node) for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return min((head for head in heads if head[0] <= line <= head[1]), key=lambda h: h[1] - h[0], default=(line, line))


def _head(node: ast.stmt) -> tuple[int, int]:
    body: list[ast.stmt] = getattr(node, "body", [])
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    if isinstance(node, ast.Try):
        return first, max(handler.body[0].lineno - 1 for handler in node.handlers) if node.handlers else first
    return first, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno


_STYLE = ("frozen", "slots", "gc", "kw_only")  # of a class: the type checker refuses as much
_UNSEEN = {"zip": "strict", "create_task": "name", "lru_cache": "maxsize"}  # arguments of calls
_TABLE = 5  # so many numbers in a row are data


class _WithoutTypes(ast.NodeTransformer):
    """Leaves out what has no behaviour: annotations, the style of a class, log lines, tables and so on."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        calls: list[ast.ClassDef | ast.Call] = [d for d in node.decorator_list if isinstance(d, ast.Call)]
        for call in (node, *calls):
            call.keywords = [keyword for keyword in call.keywords if keyword.arg not in _STYLE]
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = ast.unparse(node.func).split(".")[-1]
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != _UNSEEN.get(name)]
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if ast.unparse(node.value).startswith("log."):
            node.value = ast.Constant("")
        return self.generic_visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        if len(node.elts) >= _TABLE and all(isinstance(element, ast.Constant) for element in node.elts):
            node.elts = []
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


class _WithoutBodies(_WithoutTypes):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [ast.Pass()]
        return super().visit_FunctionDef(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.body = [ast.Pass()]
        return super().visit_AsyncFunctionDef(node)


def _shape(source: str) -> str:
    return _dump(ast.parse(source), _WithoutBodies())


def _dump(tree: ast.Module, strip: ast.NodeTransformer) -> str:
    return ast.dump(strip.visit(tree))
