"""The rule table applied offline: the same CEL, the same verdict and the same words as the API server's."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any

from coxswain.api.field_errors import FieldError, shorten
from coxswain.api.rules import RULES, Rule
from coxswain.import_guard import empty_modules

with empty_modules("cel.cli"):  # its command line takes a quarter of a second of rich and prompt_toolkit
    import cel

Manifest = Mapping[str, Any]
_ABSENT = object()
_HAS = re.compile(r"has\([^)]*\)")  # reads no value
_READ = re.compile(r"\bself((?:\.\w+\b(?!\())+)")  # `self.phases` of `self.phases.all(…)`


def check_rules(
    kind: str, new: Manifest, old: Manifest | None, well_shaped: bool, wrong: Collection[str] = (),
    rules: tuple[Rule, ...] = RULES,
) -> list[FieldError]:  # fmt: skip
    """Every one of the rules that `new` breaks; transition rules only against `old`. Defaults must be in place in both.

    A rule that cannot be evaluated means a wrong shape: with `well_shaped` it raises, else the shape's own fault suffices.
    So it does for a rule that reads one of the paths `wrong`: 0 replicas are no second fault, and no divisor.
    """
    faults: list[FieldError] = []
    for rule in rules:
        for place in rule.places:
            name, _, path = place.partition(":")
            if name == kind:
                faults += _break(rule, path, new, old, well_shaped, wrong)
    return faults


def _break(
    rule: Rule, path: str, new: Manifest, old: Manifest | None, well_shaped: bool, wrong: Collection[str]
) -> Iterator[FieldError]:
    before = dict(_values(old, path)) if old is not None and rule.is_transition else {}
    judged = [(where, value) for where, value in _values(new, path) if where in before or not rule.is_transition]
    for where, value in judged:
        if _reads(rule.cel, where, wrong):
            continue
        variables = {"self": value, **({"oldSelf": before[where]} if rule.is_transition else {})}
        try:
            if _evaluate(rule.cel, variables) is not True:
                yield _fault(rule, where, variables)
        except (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError):
            if well_shaped:
                raise


def _reads(expression: str, where: str, wrong: Collection[str]) -> bool:
    """Whether the expression, at this place, reads the value at one of the paths, or a member of it."""
    read = [f"{where}{member}.".removeprefix(".") for member in _members_read(expression)] if wrong else []
    return any(member.startswith(f"{path}.") for member in read for path in wrong)


@cache
def _members_read(expression: str) -> frozenset[str]:
    """`.trainers.count`, for example."""
    return frozenset(_READ.findall(_HAS.sub("", expression)))


def _fault(rule: Rule, where: str, variables: dict[str, Any]) -> FieldError:
    message = rule.message
    if rule.says:
        message = rule.says % tuple(_evaluate(value, variables) for value in rule.values)
    found = next((value for _, value in _values(variables["self"], rule.field.removeprefix("."))), "")
    value = shorten(found) if isinstance(found, (str, int)) else ""
    return FieldError((where + rule.field).removeprefix("."), message, value, way_out=rule.way_out)


@cache
def _compile(expression: str) -> cel.Program:
    return cel.compile(expression)


def _evaluate(expression: str, variables: dict[str, Any]) -> Any:
    return _compile(expression).execute(variables)


def _values(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value at `spec.phases[]` with its own path: (spec.phases[0], ...), (spec.phases[1], ...)."""
    found = [("", value)]
    for step in filter(None, path.replace("[]", ".[]").split(".")):
        found = [pair for where, parent in found for pair in _members(where, parent, step)]
    yield from found


def _members(where: str, parent: Any, step: str) -> list[tuple[str, Any]]:
    if step == "[]":
        return [(f"{where}[{i}]", item) for i, item in enumerate(parent)] if isinstance(parent, list) else []
    member = parent.get(step, _ABSENT) if isinstance(parent, Mapping) else _ABSENT
    return [] if member is _ABSENT else [(f"{where}.{step}".removeprefix("."), member)]
