"""Rivals that the scale bench measures beside ours: JobSet, Kubeflow Trainer (with JobSet),
training-operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from bench.scale.cases import System
from bench.scale.control_plane import Plane
from bench.scale.peers.jobset import JobSet
from bench.scale.peers.trainer import Trainer
from bench.scale.peers.training_operator import TrainingOperator

PEERS = ("jobset", "trainer", "training-operator")


def peers(plane: Plane, names: Sequence[str] = PEERS) -> list[System]:
    """So many of them on this plane, for one to run at a time.

    Raises ValueError for a name that is none.
    """
    makers = _makers(plane)
    unknown = [name for name in names if name not in makers]
    if unknown:
        raise ValueError(f"peers: unknown {', '.join(unknown)}; allowed are {', '.join(PEERS)}")
    return [makers[name]() for name in names]


def _makers(plane: Plane) -> Mapping[str, Callable[[], System]]:
    """Trainer works through the very JobSet that is measured alone."""

    @functools.cache
    def jobset() -> JobSet:
        return JobSet(plane)

    return {
        "jobset": lambda: jobset(),
        "trainer": lambda: Trainer(plane, jobset()),
        "training-operator": lambda: TrainingOperator(plane),
    }
