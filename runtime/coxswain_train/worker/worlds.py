"""A worker's successive worlds: what an error that breaks one says, and whether the next one follows."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import NamedTuple

import torch.distributed

from coxswain.errors import CoxswainError, Retryable, Stale, text_of
from coxswain_train.parallel.process_groups import WorldAborter, leave_world
from coxswain_train.worker.assignments import Assignment, AssignmentChannel
from coxswain_train.worker.release import free_world, without_frames

log = logging.getLogger(__name__)

NEXT_WORLD_SECONDS = 3.0  # seconds from an error, which may be this worker's own, to the order to leave the world
_OWN_FAULT = "Duplicate GPU detected"  # NCCL's, in an error of the class of lost peers: two ranks share a device
_NO_HOST_MEMORY = "DefaultCPUAllocator: "  # torch's, in a RuntimeError
_LESS_MEMORY = "out of memory; lower hybridData.tokensPerReplica, or set recompute: Full or offload: Auto: "
_OF_GLOO = re.compile(r"^\[/\S+:\d+\] |\.? This is typically caused by .*")  # the place in its sources; guesses
_LOST_PEER = ("gloo/transport", "gloo/rendezvous", "Connection reset by peer", "NCCL communicator was aborted")


class StateNotTaken(Retryable):
    """The ranks of a world cannot go on from its source of living state."""


def run_worlds(
    assignments: AssignmentChannel,
    aborter: WorldAborter,
    train: Callable[[Assignment], int | None],
    next_world_seconds: float = NEXT_WORLD_SECONDS,
) -> int:
    """Runs successive generations until the job ends. `train` returns None where a planned change follows.

    A worker that has lost its peers says so and waits for the next world as long as its agent is there. Raises any other
    error of a world if the agent does not soon ask the worker to leave that world: then the fault is its own.
    """
    assignment = assignments.next(None)
    while True:
        assert assignment is not None
        aborter.begin()
        ended = _train(assignment, aborter, train)
        if isinstance(ended, int):
            return ended
        assignments.step_out()
        leave_world()
        mine = ended is not None and ended.mine
        said = "" if ended is None else _first_line(ended.error)
        if not mine:
            assignments.leave("" if aborter.is_over() else said)
        free_world()  # ahead of the next one's model, while that world is agreed on
        following = assignments.next(next_world_seconds, said) if mine else assignments.next(None)
        if following is None:
            raise _end(assignment, ended)
        assignment = following


class Fault(NamedTuple):
    """What broke a world. `mine`: neither a lost peer nor an order to leave explains it."""

    error: Exception  # without frames, which hold the model of that world
    mine: bool
    text: str


def _train(
    assignment: Assignment, aborter: WorldAborter, train: Callable[[Assignment], int | None]
) -> int | Fault | None:
    try:
        return train(assignment)
    except Exception as error:
        over = aborter.is_over()
        if not _may_pass(error, over):
            raise
        log.warning("rank %d of world %d: %s", assignment.rank, assignment.generation, _first_line(error))
        mine = is_out_of_memory(error) or not (over or is_lost_peer(error))
        return Fault(error, mine, without_frames(error))


def _may_pass(error: Exception, over: bool) -> bool:
    """Whether another world may go on where this one broke. torch raises RuntimeError when a peer is gone, and any error where
    its groups are aborted while they are used."""
    broken = isinstance(error, (RuntimeError, MemoryError, Retryable, Stale))
    return broken or (over and not isinstance(error, CoxswainError))


def is_out_of_memory(error: Exception) -> bool:
    """Whether device or host have refused an allocation: no peer and no abort causes that."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and _NO_HOST_MEMORY in text_of(error))


def is_lost_peer(error: Exception) -> bool:
    """Whether an error says that a peer of the world is gone, or the world is over; else the fault may be this worker's own."""
    if _OWN_FAULT in text_of(error):
        return False
    if isinstance(error, (Stale, StateNotTaken, torch.distributed.DistError)):
        return True
    return isinstance(error, RuntimeError) and any(words in text_of(error) for words in _LOST_PEER)


def _end(assignment: Assignment, ended: Fault | None) -> CoxswainError:
    """What ends a worker that has no next world."""
    if ended is None:
        return Retryable("the agent is gone")
    if isinstance(ended.error, CoxswainError):
        return ended.error
    log.error("rank %d\n%s", assignment.rank, ended.text)
    return Retryable(f"rank {assignment.rank}: {_first_line(ended.error)}")


def _first_line(error: Exception) -> str:
    """One line of an error; where memory was short, behind what makes a step need less of it."""
    line = _OF_GLOO.sub("", (text_of(error) or type(error).__name__)[:500].partition("\n")[0])
    return _LESS_MEMORY + line if is_out_of_memory(error) else line
