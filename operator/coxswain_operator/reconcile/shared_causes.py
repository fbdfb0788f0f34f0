"""One cause that stops many pods, such as an image that no node can pull, counts once in each round of replacements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coxswain_operator.reconcile import pending
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.member_failures import START_TIMEOUT, MemberFailure

STORE_AWAY = "Away"  # reason of the fault with which services leave when the object store stays away
SHARED = (START_TIMEOUT, STORE_AWAY)


def repeated(ctx: Context, losses: Sequence[MemberFailure]) -> frozenset[str]:
    """Members whose loss is counted with another member's."""
    return frozenset(member for cause in SHARED for member in _repeated(ctx, [x for x in losses if _cause(x) == cause]))


def _repeated(ctx: Context, losses: Sequence[MemberFailure]) -> Iterator[str]:
    """All but the first, and also that one where a pod that still waits has replaced one of this round already."""
    if not losses:
        return
    number = ctx.numbers.of
    first = max(losses, key=lambda loss: number(loss.member).number)
    counted = any(number(member).number > number(first.member).number for member in _waiting(ctx))
    yield from (x.member for x in losses if counted or x is not first)


def _cause(loss: MemberFailure) -> str:
    return loss.fault.reason if loss.fault else loss.reason


def _waiting(ctx: Context) -> Iterator[str]:
    """Members that do not work yet. Not those that no node takes: the cause does not hold them up."""
    for member in ctx.members:
        pod = ctx.pods.get(member)
        if pod is None or (pod.is_active and not pod.is_serving and not pending.is_unschedulable(pod)):
            yield member
