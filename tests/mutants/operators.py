"""The kinds of fault: a choice of Cosmic Ray's operators, and those that it lacks.

Ours are plug-ins in Cosmic Ray's terms. They take guards out: a guard that no test needs is the
usual survivor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cosmic_ray.ast import get_ast
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.operators.provider import OperatorProvider
from parso.tree import NodeOrLeaf

Edit = Callable[[Any], Iterator[str]]  # a node to the texts that may stand in its place

_FROM_COSMIC_RAY = (
    "ReplaceBinaryOperator_Add_Sub", "ReplaceBinaryOperator_Sub_Add", "ReplaceBinaryOperator_Mul_Div",
    "ReplaceBinaryOperator_Div_Mul", "ReplaceBinaryOperator_FloorDiv_Mul", "ReplaceBinaryOperator_Mod_Mul",
    "ReplaceBinaryOperator_Pow_Mul", "ReplaceBinaryOperator_LShift_RShift", "ReplaceBinaryOperator_RShift_LShift",
    "ReplaceBinaryOperator_BitOr_BitAnd", "ReplaceBinaryOperator_BitAnd_BitOr", "ReplaceBinaryOperator_BitXor_BitOr",
    "ReplaceComparisonOperator_Eq_NotEq", "ReplaceComparisonOperator_NotEq_Eq", "ReplaceComparisonOperator_Is_IsNot",
    "ReplaceComparisonOperator_IsNot_Is", "ReplaceComparisonOperator_Lt_LtE", "ReplaceComparisonOperator_LtE_Lt",
    "ReplaceComparisonOperator_Gt_GtE", "ReplaceComparisonOperator_GtE_Gt", "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_Delete_USub", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "NumberReplacer",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "RemoveDecorator", "ZeroIterationForLoop",
)  # fmt: skip

_SWAPPED_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SWAPPED_ASSIGNMENTS = {"+=": ("-=", "="), "-=": ("+=", "="), "*=": ("/=", "="), "/=": ("*=", "="), "|=": ("&=", "=")}
_CONVERSIONS = {"clone", "copy", "detach", "to", "float", "double", "contiguous", "strip", "lower"}


def remove_statement(node: Any) -> Iterator[str]:
    """Calls, raises, deletions, early ends, assignments to attributes and items; log lines stay."""
    if node.parent is None or node.parent.type != "simple_stmt" or node is not node.parent.children[0]:
        return
    assigns = node.type == "expr_stmt" and any(part in "".join(map(_code, node.children[:-1])) for part in (".", "["))
    increments = node.type == "expr_stmt" and _code(node.children[1]) in _SWAPPED_ASSIGNMENTS
    ends = _code(node) in ("return", "continue", "raise") or node.type in ("raise_stmt", "del_stmt")
    calls = node.type in ("atom_expr", "power") and not _code(node).startswith("log.")
    if assigns or increments or ends or calls:
        yield "pass"


def remove_clause(node: Any) -> Iterator[str]:
    """`a and b` becomes `a`, then `b`; so does `a or b`."""
    if node.type in ("and_test", "or_test"):
        word = f" {_code(node.children[1])} "
        clauses = [_code(child) for child in node.children[::2]]
        for index in range(len(clauses)):
            yield word.join(clauses[:index] + clauses[index + 1 :])


def remove_filter(node: Any) -> Iterator[str]:
    """A comprehension loses its condition."""
    if node.type == "comp_if":
        yield " ".join(["if True", *map(_code, node.children[2:])])


def negate_condition(node: Any) -> Iterator[str]:
    """A condition that is a name or a call. Other operators change comparisons and logic."""
    parent = node.parent
    if parent is None or node.type not in ("name", "atom_expr", "atom"):
        return
    places = {"if_stmt": 1, "while_stmt": 1, "comp_if": 1, "test": 2, "ternary": 2}
    place = places.get(parent.type)
    elifs = parent.type == "if_stmt" and _code(parent.children[parent.children.index(node) - 1]) == "elif"
    if place is not None and (parent.children[place] is node or elifs):
        yield f"not {_code(node)}"


def remove_argument(node: Any) -> Iterator[str]:
    """A call loses a keyword argument."""
    arguments = node.children if node.type == "arglist" else [node]
    if node.type == "argument" and node.parent.type == "arglist":
        return  # its list is edited
    given = [child for child in arguments if _code(child) != ","]
    for index, child in enumerate(given):
        if child.type == "argument" and _code(child.children[1]) == "=":
            yield ", ".join(_code(other) for other in given[:index] + given[index + 1 :])


def remove_conversion(node: Any) -> Iterator[str]:
    """A value is used as it is: not copied, not cast, not normalised."""
    if node.type == "atom_expr":
        for index in range(1, len(node.children) - 1):
            method, call = node.children[index], node.children[index + 1]
            if _code(method)[1:] in _CONVERSIONS and _code(method)[0] == "." and _code(call)[0] == "(":
                yield "".join(
                    child.get_code() for child in (*node.children[:index], *node.children[index + 2 :])
                ).lstrip()


def narrow_exception(node: Any) -> Iterator[str]:
    """An `except` catches one exception less."""
    if node.parent is None or node.parent.type != "except_clause" or node is not node.parent.children[1]:
        return
    inner = node.children[1] if node.type == "atom" else node
    types = [_code(child) for child in (inner.children[::2] if inner.type == "testlist_comp" else [inner])]
    for index in range(len(types)):
        yield f"({', '.join(types[:index] + types[index + 1 :])})"


def swap_membership(node: Any) -> Iterator[str]:
    if node.type == "comparison":
        words = [_code(child) for child in node.children]
        for index in range(1, len(words), 2):
            if swapped := {"in": "not in", "not in": "in"}.get(" ".join(words[index].split())):
                yield " ".join([*words[:index], swapped, *words[index + 1 :]])


def swap_name(node: Any) -> Iterator[str]:
    """`min` becomes `max`, `any` becomes `all`, and back, where they are called."""
    if node.type == "atom_expr" and _code(node.children[1])[0] == "(" and _code(node.children[0]) in _SWAPPED_NAMES:
        rest = "".join(child.get_code() for child in node.children[1:])
        yield _SWAPPED_NAMES[_code(node.children[0])] + rest


def swap_assignment(node: Any) -> Iterator[str]:
    """`+=` becomes `-=`, then `=`."""
    if node.type == "operator":
        yield from _SWAPPED_ASSIGNMENTS.get(node.value, ())


EDITS: dict[str, Edit] = {
    "RemoveStatement": remove_statement, "RemoveClause": remove_clause, "RemoveFilter": remove_filter,
    "RemoveArgument": remove_argument, "RemoveConversion": remove_conversion, "NegateCondition": negate_condition,
    "NarrowException": narrow_exception, "SwapMembership": swap_membership, "SwapName": swap_name,
    "SwapAssignment": swap_assignment,
}  # fmt: skip


class EditOperator(Operator):  # type: ignore[misc]
    """One of our edits as a Cosmic Ray operator."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        for _ in self._edit(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: NodeOrLeaf, index: int) -> NodeOrLeaf:
        text = list(self._edit(node))[index]
        source = node.get_first_leaf().prefix + text  # type: ignore[no-untyped-call]
        changed: NodeOrLeaf = get_ast(source)
        return changed

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return ()


def _code(node: Any) -> str:
    text: str = node.get_code(include_prefix=False)
    return text


_provider = OperatorProvider()
OPERATORS: dict[str, Any] = {name: _provider[name]() for name in _FROM_COSMIC_RAY}
OPERATORS |= {name: EditOperator(edit) for name, edit in EDITS.items()}
