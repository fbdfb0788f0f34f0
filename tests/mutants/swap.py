"""Gives the functions of a running process the code of a mutant, without a new import."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import CodeType, FunctionType


def functions_of(path: str) -> list[FunctionType]:
    """All functions whose code comes from a file, however they are wrapped. `gc.get_objects` leaves out what is frozen."""
    gc.unfreeze()
    return [f for f in gc.get_objects() if type(f) is FunctionType and f.__code__.co_filename == path]


def swap(functions: list[FunctionType], old: str, new: str) -> int:
    """Replaces the code that differs between two sources of one shape. Returns the count."""
    path = functions[0].__code__.co_filename
    before, after = (compile(source, path, "exec", dont_inherit=True) for source in (old, new))
    changed = {a: b for a, b in _pairs(before, after) if a != b}
    swapped = [function for function in functions if function.__code__ in changed]
    for function in swapped:
        function.__code__ = changed[function.__code__]
    return len(swapped)


def fits(old: str, new: str) -> bool:
    """Whether functions can take up the new code: their variables from outside must be the same."""
    before, after = (compile(source, "<fits>", "exec", dont_inherit=True) for source in (old, new))
    return all(a.co_freevars == b.co_freevars for a, b in _pairs(before, after))


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Codes that correspond, down to one that has lost an inner function or comprehension."""
    yield old, new
    inner, renewed = ([c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new))
    if len(inner) == len(renewed):
        for a, b in zip(inner, renewed, strict=True):
            yield from _pairs(a, b)
