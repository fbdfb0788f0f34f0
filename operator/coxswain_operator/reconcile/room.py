"""Members that wait for room: no node takes their pod, or the cluster refuses it, as when a quota is used up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coxswain_operator.reconcile import deadlines, incarnations, pending
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.incarnations import Numbers
from coxswain_operator.refusals import UNAVAILABLE


@dataclass(frozen=True, slots=True)
class Waiting:
    """A member without room, and when it has waited for startTimeoutSeconds."""

    member: str
    until: float


def absent(ctx: Context, numbers: Numbers) -> Iterator[str]:
    """Members whose pods are due: none exists, the delay is over, and no predecessor runs."""
    occupied = {p.member for p in ctx.observed.pods if p.is_active or numbers.of(p.member).number == p.incarnation}
    return (m for m in ctx.members if m not in occupied and incarnations.may_start(numbers.of(m), ctx.now))


def waiting(ctx: Context) -> tuple[Waiting, ...]:
    """All members without room. Not those that a queue holds back."""
    pods = (p for p in ctx.pods.values() if pending.lacks_node(p))
    refused = absent(ctx, ctx.numbers) if _is_refused(ctx) else ()
    return (
        *(Waiting(p.member, deadlines.starts_by(ctx, p)) for p in pods),
        *(Waiting(member, deadlines.created_by(ctx, member)) for member in refused),
    )


def trainers(members: Iterable[Waiting]) -> tuple[Waiting, ...]:
    return tuple(w for w in members if w.member.startswith("trainer-"))


def refusal(ctx: Context) -> str:
    """The cluster's words; empty: the last pass was refused nothing."""
    fault = ctx.observed.rejection
    return f"{fault.reason}: {fault.message}" if fault else ""


def _is_refused(ctx: Context) -> bool:
    """Not by a server that fails: nodes that are released then help no other job."""
    fault = ctx.observed.rejection
    return fault is not None and fault.reason != UNAVAILABLE
