"""What a worker does at each step boundary: as the coordinator says, or alone as far as plans are committed. No torch."""

from __future__ import annotations

import logging

from coxswain.errors import Retryable
from coxswain.planlog import manifest_step
from coxswain.wire import StepDirective, StepPlan, World
from coxswain_link.http_client import Client
from coxswain_link.outbox import Outbox
from coxswain_link.plan_feed import PlanFeed
from coxswain_train.worker.world_check import WorldCheck

log = logging.getLogger(__name__)

_POLL = 10.0  # seconds of one long poll
REACH_DEADLINE = 5.0
"""Seconds in which a coordinator must be reached. Beyond every pause of its loop: a slow coordinator is not gone, and a rank that
continues alone may pass a stop that others follow. A process that has exited refuses at once."""

_LOOK = 0.25  # seconds to wait for the plan of a step that is begun alone


def saved_step(world: World) -> int:
    """The step of the newest checkpoint as this world began. One from living state may begin behind it."""
    return manifest_step(world.checkpoint) or 0


def autonomous_directive(
    step: int, plan: StepPlan | None, every: int, saved: int, end: int | None = None
) -> StepDirective | None:
    """The directive that any coordinator would give for a committed plan. Only a coordinator can end the job.

    `every`: the job's checkpoint.everySteps; `saved`: what a checkpoint holds, as the world began; `end`: announced, so other
    ranks may have left there.
    """
    if plan is None or plan.step != step or (end is not None and step >= end):
        return None
    return StepDirective(step=step, checkpoint=every > 0 and step % every == 0 and step > saved, end="", plan=plan)


class DirectiveClient:
    """The directives of one world, for one of its ranks. `client` must not retry: the coordinator may be gone."""

    def __init__(
        self, client: Client, outbox: Outbox, feed: PlanFeed, check_world: WorldCheck, every: int, saved: int, rank: int
    ) -> None:
        self._client, self._outbox, self._feed, self._rank = client, outbox, feed, rank
        self._check_world, self._every, self._saved = check_world, every, saved

    def next(self, step: int) -> StepDirective | None:
        """The directive of a step; None: not yet. Raises as `check_world`."""
        self._check_world()
        return self._ask(step) if self._outbox.reachable else self._decide(step)

    def _ask(self, step: int) -> StepDirective | None:
        query = {"step": step, "wait": _POLL, "rank": self._rank}
        try:
            directive = self._client.get("/v1/steps", StepDirective, generation=self._check_world.generation, **query)
        except Retryable as error:
            log.warning("step %d without the coordinator: %s", step, error)
            self._outbox.mark_unreachable()  # the next steps do not ask until a heartbeat succeeds
            return self._decide(step)
        knows = directive is None or directive.end or directive.plan is not None
        return directive if knows else self._decide(step)

    def _decide(self, step: int) -> StepDirective | None:
        plan, end = self._feed.get(step, _LOOK), self._outbox.end
        directive = autonomous_directive(step, plan, self._every, self._saved, end)
        if directive is None:
            self._outbox.await_answer(_LOOK)
        return directive
