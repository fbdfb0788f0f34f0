"""No field is accepted without effect: something reads it, or a rule refuses every other value."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import get_args

import msgspec
import pytest

from coxswain import config, layout, planlog, wire
from coxswain.api.common import Model
from coxswain.api.effects import model_of
from coxswain.api.kinds import BY_NAME
from coxswain.api.rules import RULES
from coxswain.plan import values as plan
from coxswain_coordinator import steps

ROOT = Path(__file__).parents[2]
PARTS = ("core", "runtime", "operator", "cli")

# Fields whose only reader is a rule: a bound of what a server takes, or the refusal of what has no effect.
JUDGED = {
    "maxCount": "trainers-maximum", "loaders.max": "data-loaders-fixed",
}  # fmt: skip

# Fields of stored and sent values that nothing reads. Other releases read and write them: their bytes stay.
KEPT = {
    "ModelConfig.preset": "the preset's name, for people who read a job.json",
    "Generation.author": "for people who read a plan log",
    "CheckpointManifest.attempt_generation": "for people who read a manifest",
    "Layout.standby": "for people who read a plan log; its hash names the layout",
}


@cache
def sources() -> dict[Path, tuple[str, frozenset[str]]]:
    """Text of each source file, and what it reads: attributes such as `.name`, and strings that may be keys."""
    return {f: (f.read_text(), frozenset(_read(f))) for part in PARTS for f in (ROOT / part).rglob("*.py")}


def _read(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield f".{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def readers(names: set[str], holders: set[str], without: tuple[str, ...], attributes: bool = False) -> list[Path]:
    """Files that read one of the names, and speak of one of the holders at all."""
    words = re.compile("|".join(rf"\b{re.escape(holder)}\b" if holder else "" for holder in holders))
    wanted = {f".{name}" for name in names} | (set() if attributes else names)
    found = (f for f, (text, read) in sources().items() if wanted & read and words.search(text))
    return [f for f in found if not f.as_posix().endswith(without)]


def models() -> dict[type[Model], set[str]]:
    """Every model of a spec, and what holds it: its name, and the fields of that type."""
    found: dict[type[Model], set[str]] = {}
    todo: list[tuple[type[Model], str]] = [(kind.spec, "spec") for kind in BY_NAME.values()]
    while todo:
        model, holder = todo.pop()
        if holder in found.setdefault(model, {model.__name__}):
            continue
        found[model].add(holder)
        inner = ((model_of(field.annotation)[0], name) for name, field in model.model_fields.items())
        todo += [(type_, name) for type_, name in inner if type_ is not None]
    return found


NOT_READERS = ("api/rules.py", "api/edits_page.py", "api/reference.py")


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_every_field_of_the_api_is_read_or_judged_by_a_rule(model: type[Model]) -> None:
    own = Path(inspect.getfile(model)).relative_to(ROOT).as_posix()
    unread = []
    for name, field in model.model_fields.items():
        only = len(get_args(field.annotation)) == 1 and isinstance(get_args(field.annotation)[0], str)
        if not only and not readers({name, str(field.alias)}, models()[model], (own, *NOT_READERS)):
            unread.append(str(field.alias))
    assert [name for name in unread if name not in JUDGED] == []


@pytest.mark.parametrize(("field", "rule"), JUDGED.items())
def test_a_rule_that_judges_a_field_without_a_reader_exists_and_says_its_name(field: str, rule: str) -> None:
    (found,) = [r for r in RULES if r.name == rule]
    assert all(part in f"{found.cel} {found.places}" for part in field.split("."))


@pytest.mark.parametrize("why", KEPT.values())
def test_a_field_that_nothing_reads_is_for_people_or_has_one_value_by_a_rule(why: str) -> None:
    assert "for people" in why or why.rpartition(": rule ")[2] in JUDGED


def structs(*modules: ModuleType) -> Iterator[type[msgspec.Struct]]:
    for module in modules:
        for _, value in inspect.getmembers(module, inspect.isclass):
            if issubclass(value, msgspec.Struct) and value.__module__ == module.__name__:
                yield value


def holders(type_: type[msgspec.Struct]) -> set[str]:
    """Words of files that read a part of the job; of other values any file may."""
    if type_.__module__ != config.__name__ or type_ is config.JobConfig:
        return {""}
    fields = [(f.name, str(f.type)) for other in structs(config) for f in msgspec.structs.fields(other)]
    return {type_.__name__} | {name for name, kind in fields if re.search(rf"\b{type_.__name__}\b", kind)}


def test_every_field_that_is_stored_or_sent_is_read_or_says_why_it_is_kept() -> None:
    unread = [
        f"{type_.__name__}.{name}"
        for type_ in structs(config, layout, planlog, wire, plan, steps)
        for name in type_.__struct_fields__
        if not readers({name}, holders(type_), ("api/configure.py",), attributes=True)
    ]
    assert [name for name in unread if name not in KEPT] == []
