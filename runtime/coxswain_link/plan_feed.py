"""Fetches the committed plans of one world ahead: workers continue without a coordinator."""

from __future__ import annotations

import logging
import threading

from coxswain.errors import CoxswainError, Retryable, crashed
from coxswain.wire import StepPlan, StepPlans
from coxswain_link.http_client import Client

log = logging.getLogger(__name__)

POLL_SECONDS = 25.0  # seconds of one long poll: thousands of members wait for the next segment at a time
_ATTEMPT = 2.0  # seconds of one try


class PlanFeed:
    """Fetches from its own thread, from step `first` on.

    `of`: whose part of each plan, as query: `rank` or `trainer`.
    """

    def __init__(self, client: Client, generation: int, first: int, **of: int | str) -> None:
        self._client, self._generation, self._next, self._of = client, generation, first, of
        self._plans: dict[int, StepPlan] = {}
        self._change = threading.Condition()
        self._fault: CoxswainError | None = None
        self._closed = False
        threading.Thread(target=self._run, name="plans", daemon=True).start()

    def get(self, step: int, wait: float) -> StepPlan | None:
        """The first plan not before `step`, or None after `wait` seconds.

        It may be a later one: the coordinator does not serve plans of closed steps.
        """
        with self._change:
            self._change.wait_for(lambda: self._fault or self._closed or self._next > step, wait)
            if self._fault is not None and self._next <= step:
                raise self._fault
            return next((self._plans[s] for s in sorted(self._plans) if s >= step), None)

    def peek(self, step: int) -> StepPlan | None:
        """The plan of a step, if it has been fetched."""
        return self._plans.get(step)

    def forget_before(self, step: int) -> None:
        with self._change:
            self._plans = {s: plan for s, plan in self._plans.items() if s >= step}

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._add(self._fetch())
            except Retryable as error:
                log.debug("cannot fetch plans: %s", error)
            except CoxswainError as error:
                self._fail(error)
                return
            except Exception as error:
                log.exception("no more plans are fetched")
                self._fail(crashed("the thread that fetches plans", error))
                return

    def _fail(self, error: CoxswainError) -> None:
        with self._change:
            self._fault = error
            self._change.notify_all()

    def _fetch(self) -> StepPlans | None:
        query = {"from": self._next, "wait": POLL_SECONDS, **self._of}
        return self._client.get("/v1/plans", StepPlans, generation=self._generation, deadline=_ATTEMPT, **query)

    def _add(self, found: StepPlans | None) -> None:
        plans = [p for p in found.plans if p.generation == self._generation] if found else []
        with self._change:
            self._plans.update((p.step, p) for p in plans)
            self._next = max([self._next, *(p.step + 1 for p in plans)])
            self._change.notify_all()
