"""From a plan to what one replica computes: the slices it needs, and the arrays of their tokens.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coxswain.membership.values import Sequence
from coxswain.plan.values import Slice
from coxswain.wire import StepPlan
from coxswain_link.flight import SliceRequest
from coxswain_link.step_buffer import NO_LABEL, Columns, StepArrays, StepSlice


class Need(NamedTuple):
    """A slice that one of our replicas computes, and what is to be fetched for it; None: nothing.

    Labels are the next tokens: the last one is behind the slice.
    """

    task: int
    slice: Slice
    request: SliceRequest | None


def needs(plan: StepPlan, columns: Mapping[int, Columns]) -> list[Need]:
    """What our replicas need for a step and the evaluation behind it, in task order.

    `columns`: of each replica, those that our stages of it need.
    """
    tasks = sorted(plan.all_tasks, key=lambda t: t.index)
    mine = ((t.index, s) for t in tasks for s in t.slices if s.replica in columns)
    return [Need(task, s, _request(plan.sequence(s.sequence), s, columns[s.replica])) for task, s in mine]


def _request(sequence: Sequence, part: Slice, columns: Columns) -> SliceRequest | None:
    start = part.start if columns.tokens else part.start + 1
    stop = min(part.stop + 1, sequence.length - sequence.start) if columns.labels else part.stop
    return SliceRequest(sequence, start, stop) if (columns.tokens or columns.labels) and start < stop else None


def arrays(plan: StepPlan, mine: List[Need], tokens: List[NDArray[np.int32]], columns: Columns) -> StepArrays:
    """One replica's step.

    `tokens` answers the request of each need. A sample's last token has no label.
    """
    parts = [need.slice for need in mine]
    offsets = np.cumsum([0, *(p.stop - p.start for p in parts)])
    ids, labels, positions = (np.full(offsets[-1], NO_LABEL, np.int32) for _ in range(3))
    for part, got, offset in zip(parts, tokens, offsets, strict=False):
        count, following = part.stop - part.start, got[1:] if columns.tokens else got
        if columns.tokens:
            ids[offset : offset + count] = got[:count]
        if columns.labels:
            labels[offset : offset + len(following)] = following
        positions[offset : offset + count] = np.arange(part.start, part.stop)
    slices = tuple(
        StepSlice(n.task, n.slice.sequence, n.slice.start, n.slice.stop, int(o))
        for n, o in zip(mine, offsets, strict=False)
    )
    return StepArrays(plan.generation, plan.step, ids, labels, positions, slices).only(columns)
