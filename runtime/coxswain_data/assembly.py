"""From a plan to what one replica computes: the slices it needs, and the arrays of their tokens.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coxswain.plan.values import Slice
from coxswain.wire import StepPlan
from coxswain_link.flight import SliceRequest
from coxswain_link.step_buffer import NO_LABEL, StepArrays, StepSlice


class Need(NamedTuple):
    """A slice that one of our replicas computes. It requests one token more: the last label."""

    task: int
    slice: Slice
    request: SliceRequest


def needs(plan: StepPlan, replicas: Collection[int]) -> list[Need]:
    """What these replicas need for a step, in task order."""
    tasks = sorted(plan.tasks, key=lambda t: t.index)
    return [Need(t.index, s, _request(plan, s)) for t in tasks for s in t.slices if s.replica in replicas]


def _request(plan: StepPlan, part: Slice) -> SliceRequest:
    sequence = plan.sequence(part.sequence)
    return SliceRequest(sequence, part.start, min(part.stop + 1, sequence.length - sequence.start))


def arrays(plan: StepPlan, mine: Sequence[Need], tokens: Sequence[NDArray[np.int32]]) -> StepArrays:
    """One replica's step.

    `tokens` answers the request of each need. A sample's last token has no label.
    """
    parts = [need.slice for need in mine]
    offsets = np.cumsum([0, *(p.stop - p.start for p in parts)])
    ids, labels, positions = (np.full(offsets[-1], NO_LABEL, np.int32) for _ in range(3))
    for part, got, offset in zip(parts, tokens, offsets, strict=False):
        count = part.stop - part.start
        ids[offset : offset + count] = got[:count]
        labels[offset : offset + len(got) - 1] = got[1:]
        positions[offset : offset + count] = np.arange(part.start, part.stop)
    slices = tuple(
        StepSlice(n.task, n.slice.sequence, n.slice.start, n.slice.stop, int(o))
        for n, o in zip(mine, offsets, strict=False)
    )
    return StepArrays(plan.generation, plan.step, ids, labels, positions, slices)
