"""What a rank computes in a step. It is fetched from the constructor while the step before is computed."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import torch

from coxswain.errors import CoxswainError
from coxswain.layout import Seat
from coxswain.plan.values import Operation, StageOperations
from coxswain.wire import StepPlan
from coxswain_link.handover import Handover
from coxswain_link.step_buffer import Columns, StepArrays
from coxswain_train.engine.engine import StepInput
from coxswain_train.engine.step import Part, parts
from coxswain_train.worker import batch as batches

log = logging.getLogger(__name__)

PATIENCE = 600.0  # seconds without data until a worker gives up


class FetchedBatch(NamedTuple):
    """One rank's part of a step, and its part of the delivered digest, which counts once a replica."""

    work: StepInput
    delivered: int


class BatchPrefetcher:
    """The steps of one rank in one world, in order. Only one thread at a time uses `handover`."""

    def __init__(
        self, handover: Handover, seat: Seat, vocabulary: int, device: torch.device, columns: Columns = batches.WHOLE
    ) -> None:
        self._handover, self._seat, self._vocabulary, self._device = handover, seat, vocabulary, device
        self._columns = columns
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._ahead: tuple[str, Future[FetchedBatch]] | None = None  # the digest of its plan, and its data

    def begin(self, plan: StepPlan) -> None:
        """Fetches the data of a coming step if the constructor has it ready."""
        self._ahead = plan.digest, self._thread.submit(self._fetch, plan, 0.0)

    def take(self, plan: StepPlan) -> FetchedBatch:
        """The step's data. Raises as `Handover.receive`, after PATIENCE; Retryable when it is not the plan's."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            digest, fetched = ahead
            try:
                batch = fetched.result()  # also of another plan: its thread must be done with the hand-over
                if digest == plan.digest:
                    return batch
            except CoxswainError as error:  # not ready then; any other error comes again
                log.debug("step %d was not fetched ahead: %s", plan.step, error)
        return self._fetch(plan, PATIENCE)

    def close(self) -> None:
        self._thread.shutdown()

    def _fetch(self, plan: StepPlan, patience: float) -> FetchedBatch:
        arrays = self._handover.receive(plan.generation, plan.step, self._seat.rank, patience)
        mine = parts(plan.all_tasks, self._seat.replica)
        batches.check(arrays, mine.values(), self._vocabulary, self._columns)
        trained, counts = batches.trained_part(arrays, plan), self._columns.tokens and not self._seat.tensor
        delivered = batches.delivered(trained) if counts else 0
        return FetchedBatch(replace(self._work(plan, mine, arrays, trained), delivered=delivered), delivered)

    def _work(self, plan: StepPlan, mine: dict[int, Part], arrays: StepArrays, trained: StepArrays) -> StepInput:
        """This rank's part of the plan with its tokens. `trained`: the arrays without those of an evaluation."""
        return StepInput(
            step=plan.step,
            parts=mine,
            operations=self._mine(plan.operations),
            batch=batches.load(arrays, self._device),
            valid=batches.valid_labels(trained),
            labels=plan.labels,
            plan=int(plan.digest[-12:], 16),
            evaluation=self._mine(plan.evaluation.operations) if plan.evaluation else None,
            waves=plan.waves,
        )

    def _mine(self, lists: Iterable[StageOperations]) -> list[Operation]:
        """The operations of this rank's stage."""
        here = self._seat.replica, self._seat.stage
        return [o for s in lists if (s.replica, s.stage) == here for o in s.operations]
