"""What keeps a class of the user's own from being trained, found before its weights have values: nothing later would name it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

import torch
from torch import nn

from coxswain.holdings import ParameterSpec, Place

NEEDED = (
    "stack",
    "rotary",
    "embed",
    "token_losses",
    "weights",
    "leave_out_empty_rows",
    "parameter_specs",
    "to",
    "train",
)
_SHOWN = 3  # faults that a message names
_ENDS: tuple[str, ...] = get_args(get_args(Place)[1])


def listed(faults: Iterable[str]) -> str:
    """The first of them on one line, and how many more there are; empty without any."""
    found = list(faults)
    return "; ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")


def spec_faults(specs: Sequence[Any], layers: int) -> Iterator[str]:
    """What is wrong with the class's `parameter_specs`. A weight at a place that the model lacks would have no owner."""
    right = [spec for spec in specs if isinstance(spec, ParameterSpec)]
    yield from (f"{type(spec).__name__} is no ParameterSpec" for spec in specs if not isinstance(spec, ParameterSpec))
    yield from (f"{name} is there {n} times" for name, n in Counter(str(s.name) for s in right).items() if n > 1)
    for spec in right:
        if not isinstance(spec.shape, (list, tuple)) or not all(isinstance(size, int) for size in spec.shape):
            yield f"{spec.name} has the shape {spec.shape!r}; give a tuple of whole numbers, such as (4,)"
        if not _exists(spec.place, layers):
            yield f"{spec.name} has the place {spec.place!r}; give a layer, 0 to {layers - 1}, or {', '.join(_ENDS)}"


def _exists(place: object, layers: int) -> bool:
    return 0 <= place < layers if isinstance(place, int) else place in _ENDS


def differences(specs: Iterable[ParameterSpec], weights: Mapping[str, nn.Parameter]) -> Iterator[str]:
    """Where weights and specs do not name the same, in the same shapes."""
    said, found = {s.name: s.shape for s in specs}, {name: tuple(weight.shape) for name, weight in weights.items()}
    for name in [*found, *(said.keys() - found.keys())]:
        if found.get(name) != said.get(name):
            yield f"{name} is {_shape(found.get(name))}, the specs say {_shape(said.get(name))}"


def unfit(weights: Mapping[str, nn.Parameter]) -> Iterator[str]:
    """Weights that ranks cannot share by rows, or that have no real gradient."""
    for name, weight in weights.items():
        if not isinstance(weight, nn.Parameter):
            yield f"{name} is no Parameter; give the parameters themselves, not what is computed from them"
        elif not weight.dim() or not weight.numel():
            yield f"{name} has the shape {_shape(tuple(weight.shape))}, without a row; give a single number [1]"
        elif not weight.requires_grad:
            yield f"{name} takes no gradient; make it a buffer"
        elif weight.is_complex():
            yield f"{name} is complex; keep its real and imaginary parts as real numbers"


def named_twice(weights: Mapping[str, nn.Parameter]) -> Iterator[str]:
    """Names of memory that another name has as well: of its two owners' values each world would keep only one."""
    first: dict[int, str] = {}
    for name, weight in weights.items():
        if (other := first.setdefault(weight.data_ptr(), name)) != name:
            yield f"{name} is {other}, too; leave one of the names out"


def without_values(made: Any) -> Iterator[str]:
    """Tensors of the meta device, which cannot be moved to another one."""
    if isinstance(made, nn.Module):
        yield from (name for name, x in (*made.named_parameters(), *made.named_buffers()) if x.is_meta)


def left_out(made: Any, weights: Mapping[str, nn.Parameter]) -> Iterator[str]:
    """Parameters with a gradient that `weights` does not name: each rank would keep values of its own."""
    named = {id(weight) for weight in weights.values()}
    if isinstance(made, nn.Module):
        yield from (name for name, p in made.named_parameters() if p.requires_grad and id(p) not in named)


def missing_positions(made: Any, longest: int) -> str:
    """How many positions a model has learned, where a sequence may have more tokens. Asked on the CPU: there torch raises."""
    if not longest or _embeds(made, longest - 1) or not _embeds(made, 0):
        return ""
    count = bisect_left(range(longest), True, key=lambda position: not _embeds(made, position))
    return f"embeds {count} positions, and batch.maxSequenceTokens is {longest}"


def _embeds(made: Any, position: int) -> bool:
    """Whether no index is out of range. Another error is named when a step meets it."""
    with torch.no_grad(), torch.random.fork_rng(devices=()), suppress(Exception):
        try:
            made.embed(torch.zeros(1, dtype=torch.long), torch.tensor([position]))
        except IndexError:
            return False
    return True


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))
