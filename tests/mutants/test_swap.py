"""Functions that are in use take up the code of a mutant."""

from __future__ import annotations

import functools
import gc
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants.swap import functions_of, swap

SOURCE = """\
import functools

def keep(f):
    @functools.wraps(f)
    def wrapper(*args):
        return f(*args)
    return wrapper

@keep
def double(x):
    return 2 * x

class Counter:
    limit = 3
    @property
    def count(self):
        return max([n for n in range(self.limit)])

@functools.lru_cache
def cached(x):
    return sorted([x], key=lambda value: value)[0]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "swapped_sample.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "swapped_sample", raising=False)
    return __import__("swapped_sample")


def become(module: ModuleType, before: str, after: str) -> int:
    assert before in SOURCE
    return swap(functions_of(str(module.__file__)), SOURCE, SOURCE.replace(before, after))


def test_a_function_behind_a_decorator_changes(module: ModuleType) -> None:
    double = module.double
    assert become(module, "2 * x", "3 * x") == 1
    assert double(5) == 15


def test_the_inner_function_that_a_decorator_made_changes(module: ModuleType) -> None:
    become(module, "return f(*args)", "return -f(*args)")
    assert module.double(5) == -10


def test_a_property_changes_in_objects_that_exist(module: ModuleType) -> None:
    counter = module.Counter()
    become(module, "range(self.limit)", "range(self.limit + 1)")
    assert counter.count == 3


def test_a_function_that_loses_an_inner_function_changes(module: ModuleType) -> None:
    become(module, "return sorted([x], key=lambda value: value)[0]", "return None")
    assert isinstance(module.cached, functools._lru_cache_wrapper)
    assert module.cached(1) is None


def test_equal_sources_change_nothing(module: ModuleType) -> None:
    assert become(module, "2 * x", "2 * x") == 0


def test_functions_are_found_that_garbage_collection_leaves_alone(module: ModuleType) -> None:
    """`conftest.py` freezes all that collection has imported."""
    gc.freeze()
    try:
        assert become(module, "return 2 * x", "return 3 * x") == 1
        assert module.double(2) == 6
    finally:
        gc.unfreeze()
