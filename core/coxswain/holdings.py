"""Which boxes of which parameters each rank of a layout holds: stages take layers, tensor groups take parts of matrices.

A model describes its parameters once (`ParameterSpec`); everything else follows from the layout. Tensor parallelism is
that of Shoeybi et al., arXiv 1909.08053, section 3: columns of the first matrix, rows of the second, parts of the
vocabulary; key heads below the degree are held several times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from coxswain.boxes import Box, full_box
from coxswain.layout import Layout, Stage

Place = int | Literal["first", "last", "ends"]  # number of a layer; embedding; final norm and head; a tied embedding


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """One parameter of the whole model: its stage, and how a tensor group of degree t shares it.

    `split` is the dimension that the group cuts in t parts, in units of `heads` where that is not 0; None: every rank
    of the group holds it whole. `partial`: several ranks may hold the same elements, and the gradient on each is a part
    of the sum (key heads fewer than t, a norm applied to a rank's own heads); else such gradients are all the same.
    """

    name: str
    shape: tuple[int, ...]
    place: Place
    split: int | None = None
    heads: int = 0
    partial: bool = False

    def box(self, tensor: int, degree: int) -> Box:
        """The box of the `tensor`-th rank of a group of `degree`. Raises ValueError where the parts are uneven."""
        whole = full_box(self.name, self.shape)
        if self.split is None:
            return whole
        start, stop = self._interval(tensor, degree)
        offset, shape = list(whole.offset), list(self.shape)
        offset[self.split], shape[self.split] = start, stop - start
        return Box(self.name, tuple(offset), tuple(shape))

    def counts(self, tensor: int, degree: int) -> bool:
        """Whether this rank's gradient goes into the sum; equal gradients count once a group."""
        return self.split is not None or self.partial or tensor == 0

    def _interval(self, tensor: int, degree: int) -> tuple[int, int]:
        assert self.split is not None
        size = self.shape[self.split]
        units = self.heads or size
        if units >= degree and units % degree == 0:
            share = units // degree
            first, last = tensor * share, (tensor + 1) * share
        elif self.heads and self.partial and degree % units == 0:  # several ranks hold one head
            first = tensor * units // degree
            last = first + 1
        else:
            what = "heads" if self.heads else "rows" if self.split == 0 else "columns"
            raise ValueError(f"{self.name}: {units} {what} cannot be shared evenly by a tensor group of {degree}")
        return first * size // units, last * size // units


@dataclass(frozen=True, slots=True)
class Holding:
    """A box that a rank holds. `counts` False: another rank of its group has the same gradient, and sends it."""

    box: Box
    counts: bool = True


def is_on(place: Place, stage: Stage, layers: int) -> bool:
    """Whether parameters of this place are on the stage, in a model of so many layers."""
    if isinstance(place, int):
        return stage.start <= place < stage.stop
    first, last = stage.start == 0, stage.stop == layers
    return {"first": first, "last": last, "ends": first or last}[place]


def all_holdings(specs: Sequence[ParameterSpec], layout: Layout, layers: int) -> Iterator[tuple[Holding, ...]]:
    """The holdings of every rank, in the order of ranks. Ranks of equal stages and tensor indices share one tuple."""
    known: dict[tuple[int, int, int], list[tuple[Holding, ...]]] = {}
    for stage in (stage for replica in layout.replicas for stage in replica.stages):
        key = stage.start, stage.stop, len(stage.devices)
        if key not in known:
            mine = [spec for spec in specs if is_on(spec.place, stage, layers)]
            known[key] = [_holdings(mine, tensor, key[-1]) for tensor in range(key[-1])]
        yield from known[key]


def _holdings(specs: Iterable[ParameterSpec], tensor: int, degree: int) -> tuple[Holding, ...]:
    """What one rank of a group holds, in the model's order."""
    return tuple(Holding(spec.box(tensor, degree), spec.counts(tensor, degree)) for spec in specs)


def tensor_faults(specs: Iterable[ParameterSpec], degrees: Iterable[int]) -> list[str]:
    """Why these degrees cannot share the model; empty when they can."""
    faults = []
    for degree in sorted(set(degrees)):
        for spec in specs:
            try:
                spec.box(0, degree)
            except ValueError as error:
                faults.append(str(error))
    return faults
