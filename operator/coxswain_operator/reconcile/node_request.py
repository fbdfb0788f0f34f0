"""A job that asks for another node: its node is quarantined if another one fits, one at a time, and the trainers leave it.

A slow node is better than none: it is admitted again when a trainer that has left finds no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as replace_fields

from msgspec import UNSET
from msgspec.structs import replace

from coxswain.wire import NodeRequest
from coxswain_operator.children import PodPlan
from coxswain_operator.children.quarantine import quarantine
from coxswain_operator.reconcile import node_fit, pending
from coxswain_operator.reconcile import quarantine as quarantines
from coxswain_operator.reconcile.actions import EndQuarantine, Quarantine
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.status import JobStatus, KeptNode
from coxswain_operator.reconcile.times import seconds, stamp
from coxswain_operator.views import Event, PodView, QuarantineView

QUARANTINE_SECONDS = 86_400  # a node is tried again a day later
PAUSE_SECONDS = 600  # between two of the operator's quarantines, whatever jobs ask for them
PATIENCE_SECONDS = 60  # that a trainer without a node waits for the scheduler
KEPT_SECONDS = 3600  # for which a node that could not be replaced is not asked about again
ACTION = "ReplaceNode"


@dataclass(frozen=True, slots=True)
class Answer:
    """`kept`: the node that stays, and why."""

    actions: tuple[Quarantine | EndQuarantine, ...] = ()
    events: tuple[Event, ...] = ()
    kept: KeptNode | None = None

    def recorded(self, status: JobStatus) -> JobStatus:
        return replace(status, kept_node=self.kept) if self.kept else status


def answer(ctx: Context, plan: PodPlan) -> Answer:
    """To what the coordinator asks, and to trainers that found no other node. The operator's ended quarantines go first."""
    ended = tuple(EndQuarantine(q.name, q.uid, _readmission(ctx, q)) for q in quarantines.over(ctx))
    answered = _answer(ctx, plan)
    return replace_fields(answered, actions=(*ended, *answered.actions))


def _readmission(ctx: Context, q: QuarantineView) -> Event | None:
    """None: its time is over, as it said from the beginning."""
    if q.until <= ctx.now:
        return None
    uids = f"uid {quarantines.newcomer(ctx, q)}; in quarantine was {q.node_uid}"
    text = f"{q.node}: another node has that name now ({uids}); NodeQuarantine {q.name} is deleted"
    return Event("NodeReadmitted", text)


def _answer(ctx: Context, plan: PodPlan) -> Answer:
    if failed := _without_another(ctx):
        return _used_again(ctx, failed)
    request = _request(ctx)
    if request is None:
        return Answer()
    if why := _refusal(ctx, request, plan) or ctx.observed.quarantine_refusal:
        return replaced_by(ctx, request.node, f"{request.node} stays, though {request.evidence}: {why}", PAUSE_SECONDS)
    nodes, until = ctx.observed.nodes or {}, stamp(ctx.now + QUARANTINE_SECONDS)
    manifest = quarantine(ctx.observed.job, request, until, nodes[request.node].uid if request.node in nodes else "")
    event = Event("NodeQuarantined", f"{request.node}: {request.evidence}; {request.trainer} moves", warning=True)
    return Answer((Quarantine(manifest, event, ctx.settings.quarantine_limit),))


def _used_again(ctx: Context, made: QuarantineView) -> Answer:
    """Each is said once, while the server does not let the operator delete it."""
    ended = EndQuarantine(made.name, made.uid)
    barred = f"{made.node} stays in quarantine, and a trainer waits"
    if why := ctx.observed.quarantine_refusal:
        text = f"{barred}: {why}; delete NodeQuarantine {made.name} yourself"
    else:
        text = f"{made.node} is used again: no other node had room for its trainer"
    known = _kept_for(ctx, made.node)
    if known and (not why or known.startswith(barred)):
        return Answer((ended,))
    return replaced_by(ctx, made.node, text, KEPT_SECONDS, (ended,))


def _kept_for(ctx: Context, node: str) -> str:
    """Why the node stays by the status; empty: it does not say so."""
    kept = ctx.status.kept_node
    return kept.message if kept is not UNSET and kept.node == node and ctx.now < seconds(kept.until) else ""


def replaced_by(ctx: Context, node: str, text: str, pause: int, actions: tuple[EndQuarantine, ...] = ()) -> Answer:
    kept = KeptNode(node=node, message=text[:1024], until=stamp(ctx.now + pause))
    return Answer(actions, (Event("NodeKept", text, warning=True),), kept)


def settled(ctx: Context, status: JobStatus) -> JobStatus:
    """Forgets a node that stayed once it may be asked about again."""
    over = status.kept_node and seconds(status.kept_node.until) <= ctx.now
    return replace(status, kept_node=UNSET) if over else status


def requeue_times(ctx: Context) -> tuple[float, ...]:
    """When a trainer has waited long enough for another node."""
    mine = _mine(ctx)
    return tuple(_waits_until(ctx, p) for p in ctx.pods.values() if mine and pending.is_unschedulable(p))


def _request(ctx: Context) -> NodeRequest | None:
    """One that is neither met nor refused for now."""
    report = ctx.report
    if report is None or report.phase != "Running" or ctx.spec.stragglers.action != ACTION:
        return None
    request, kept = report.replace_node, ctx.status.kept_node
    if request is None or not _sits_there(ctx, request) or request.node in quarantines.avoided(ctx):
        return None
    return None if kept and kept.node == request.node else request


def _sits_there(ctx: Context, request: NodeRequest) -> bool:
    """Whether this job's trainer runs on the node. The report is the job's word, and its image may be the user's own."""
    pod = ctx.pods.get(request.trainer)
    return pod is not None and pod.role == "trainer" and bool(pod.node) and pod.node == request.node


def _refusal(ctx: Context, request: NodeRequest, plan: PodPlan) -> str:
    """Why the node stays; empty: it may go."""
    made = [q for q in quarantines.in_force(ctx) if q.job]
    if not ctx.settings.quarantine:
        return "this installation quarantines no nodes (the chart's quarantine.enabled)"
    if len(made) >= ctx.settings.quarantine_limit:
        return (
            f"{len(made)} of at most {ctx.settings.quarantine_limit} nodes are in quarantine already (quarantine.limit)"
        )
    if any(ctx.now < _made_at(ctx, q) + PAUSE_SECONDS for q in made):
        return f"another node was quarantined within {PAUSE_SECONDS} s"
    if any(q.name == request.node and not q.job for q in ctx.observed.quarantines):
        return f"its name is taken: delete NodeQuarantine {request.node}, which is not the operator's"
    if ctx.not_serving:
        return f"{ctx.not_serving[0]} does not work: one change at a time"
    return _without_place(ctx, request, plan)


def _made_at(ctx: Context, made: QuarantineView) -> float:
    """By the operator's clock, as its end; by the API server's, where a person has put the end off."""
    begun = made.until - QUARANTINE_SECONDS
    return begun if begun <= ctx.now else made.created


def _without_place(ctx: Context, request: NodeRequest, plan: PodPlan) -> str:
    nodes = ctx.observed.nodes
    if nodes is None:
        return "the operator may not see nodes (rbac.nodes), so it does not know of another"
    spec = plan.pod(request.trainer, 0)["spec"]
    others = [(name, node) for name, node in sorted(nodes.items()) if name != request.node]
    reasons = [node_fit.misfit(name, node, spec, _trainers_on(ctx, name)) for name, node in others]
    if not all(reasons):
        return ""
    counted = ", ".join(f"{reasons.count(reason)} {reason}" for reason in sorted(set(reasons)))
    return f"no other node fits ({counted or 'there is none'})"


def _trainers_on(ctx: Context, node: str) -> int:
    return sum(p.node == node and p.role == "trainer" and p.occupies for p in ctx.observed.pods)


def _mine(ctx: Context) -> list[QuarantineView]:
    uid = ctx.observed.job["metadata"]["uid"]
    return [q for q in quarantines.in_force(ctx) if q.job == uid]


def _without_another(ctx: Context) -> QuarantineView | None:
    """A quarantine of this job's that leaves a trainer without a node."""
    stuck = [p for p in ctx.pods.values() if pending.lacks_node(p) and ctx.now >= _waits_until(ctx, p)]
    return next((q for q in _mine(ctx) if any(q.node in p.avoids for p in stuck)), None)


def _waits_until(ctx: Context, pod: PodView) -> float:
    """Not from before we asked for it: the API server's clock may be behind ours."""
    return max(pod.made, seconds(ctx.numbers.of(pod.member).since)) + PATIENCE_SECONDS
