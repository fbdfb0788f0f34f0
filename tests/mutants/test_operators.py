"""Which mutants a source has, and which changes are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lazy import Lazy

if TYPE_CHECKING:
    from tests.mutants import mutation
else:
    mutation = Lazy("tests.mutants.mutation")  # cosmic_ray

MODULE = "core/sample.py"


def changes(source: str, operator: str = "") -> list[mutation.Change]:
    mutants = [mutant for mutant in mutation.mutants_of(MODULE, source) if operator in mutant.operator]
    return [change for mutant in mutants if (change := mutation.apply(source, mutant)) is not None]


def after(source: str, operator: str) -> list[str]:
    return [change.after for change in changes(source, operator)]


@pytest.mark.parametrize(
    ("operator", "line", "mutants"),
    [
        ("RemoveStatement", "check(x)", ["pass"]),
        ("RemoveStatement", "await check(x)", ["pass"]),
        ("RemoveStatement", "raise Refused(x)", ["pass"]),
        ("RemoveStatement", "return", ["pass"]),
        ("RemoveStatement", "x.y = 1", ["pass"]),
        ("RemoveStatement", "x[0] = 1", ["pass"]),
        ("RemoveStatement", "del x[0]", ["pass"]),
        ("RemoveStatement", "log.info(x)", []),
        ("RemoveStatement", '"""A docstring."""', []),
        ("RemoveClause", "y = a and b and c", ["y = b and c", "y = a and c", "y = a and b"]),
        ("RemoveClause", "y = a or b", ["y = b", "y = a"]),
        ("RemoveFilter", "y = [a for a in x if a]", ["y = [a for a in x if True]"]),
        ("RemoveArgument", "f(x, key=1, other=2)", ["f(x, other=2)", "f(x, key=1)"]),
        ("RemoveArgument", "f(key=1)", ["f()"]),
        ("RemoveConversion", "y = x.detach().clone()", ["y = x.clone()", "y = x.detach()"]),
        ("RemoveConversion", "y = x.to(wide)", ["y = x"]),
        ("NegateCondition", "y = 1 if a else 2", ["y = 1 if not a else 2"]),
        ("NegateCondition", "y = [a for a in x if f(a)]", ["y = [a for a in x if not f(a)]"]),
        ("SwapMembership", "y = a in b", ["y = a not in b"]),
        ("SwapMembership", "y = a not in b", ["y = a in b"]),
        ("SwapName", "y = min(a, b)", ["y = max(a, b)"]),
        ("SwapAssignment", "x += 1", ["x -= 1", "x = 1"]),
        ("ReplaceComparisonOperator", "y = a <= b", ["y = a < b"]),
    ],
)
def test_an_operator_changes_a_line_into(operator: str, line: str, mutants: list[str]) -> None:
    source = f"async def f(x):\n    {line}\n    return 7\n"
    assert after(source, operator) == mutants


@pytest.mark.parametrize(
    ("types", "mutants"),
    [
        ("E", ["()"]),
        ("a.E", ["()"]),
        ("(a.E, F)", ["(F)", "(a.E)"]),
        ("(E, F, G) as e", ["(F, G) as e", "(E, G) as e", "(E, F) as e"]),
    ],
)
def test_a_handler_catches_one_exception_less(types: str, mutants: list[str]) -> None:
    source = f"def f(x):\n    try:\n        x()\n    except {types}:\n        pass\n"
    assert after(source, "NarrowException") == [f"except {text}:" for text in mutants]


def test_both_conditions_of_an_if_with_elif_are_negated() -> None:
    source = "def f(a, b):\n    if a:\n        return 1\n    elif b:\n        return 2\n    return 3\n"
    assert after(source, "NegateCondition") == ["if not a:", "elif not b:"]


@pytest.mark.parametrize(
    "source",
    [
        "def f(x: int | None) -> int | None: ...",
        "x: int | None",
        "@dataclass(frozen=True, slots=True)\nclass A: ...",
        "y = zip(a, b, strict=True)",
        "y = f(**x)",
        "y = (1, 2, 3, 4, 5)",
        "y = create_task(x, name=f'job {z[0]}')",
        "log.warning('%s', x[0], exc_info=not y)",
        "y = lru_cache(maxsize=7)(x)",
    ],
)
def test_a_change_without_behaviour_is_no_mutant(source: str) -> None:
    assert [change for change in changes(source) if not change.before.startswith("@dataclass(")] == []


def test_a_change_names_its_line_and_the_lines_of_its_statement() -> None:
    source = "def f(x):\n    y = g(\n        x,\n        z=a<b,\n    )\n    return y\n"
    (change,) = changes(source, "ReplaceComparisonOperator")
    assert (change.line, change.before, change.after) == (4, "z=a<b,", "z=a <=b,")
    assert change.lines == (2, 5)


def test_a_change_in_the_head_of_a_loop_is_judged_by_tests_that_reach_the_head() -> None:
    source = "def f(x):\n    while x < 3:\n        x += 1\n"
    (change,) = changes(source, "ReplaceComparisonOperator")
    assert change.lines == (2, 2)


@pytest.mark.parametrize(
    ("source", "in_function"),
    [
        ("def f():\n    return 1\n", True),
        ("class A:\n    def f(self):\n        return [1 for x in y]\n", True),
        ("LIMIT = 1\n", False),
        ("def f(x=1):\n    return x\n", False),
        ("class A:\n    limit: int = 1\n", False),
        ("@cache(1)\ndef f():\n    pass\n", False),
    ],
)
def test_a_running_process_can_take_up_changes_within_functions_alone(source: str, in_function: bool) -> None:
    assert {change.in_function for change in changes(source, "NumberReplacer")} == {in_function}


def test_a_function_that_loses_its_closure_is_imported_again() -> None:
    source = "class A(B):\n    def f(self):\n        super().f()\n        self.g()\n"
    assert [c.in_function for c in changes(source, "RemoveStatement")] == [False, True]


def test_a_larger_sample_contains_a_smaller_one_and_is_the_same_each_time() -> None:
    source = "x = [1, 2, 3, 4, 5, 6, 7]\n"
    mutants, again = (mutation.mutants_of(MODULE, source) for _ in range(2))
    assert mutation.sample(mutants, 9)[:4] == mutation.sample(mutants, 4) == mutation.sample(again, 4)
    assert sorted(mutation.sample(mutants, None), key=lambda m: m.key) == sorted(mutants, key=lambda m: m.key)
