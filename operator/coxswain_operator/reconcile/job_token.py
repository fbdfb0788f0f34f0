"""Which Secret's token the pods of a start carry. All pods of a start carry the same."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from coxswain_operator.children.job_token import mounted_name, secret, secret_name
from coxswain_operator.reconcile.actions import Create
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.status import JobStatus


def settle(ctx: Context, status: JobStatus) -> JobStatus:
    """With the newest key's Secret, for a start."""
    name = secret_name(ctx.observed.job, ctx.observed.tokens[0])
    former = status.former_token_secret if status.token_secret == name else status.token_secret
    return replace(status, token_secret=name, former_token_secret=former)


def noted(status: JobStatus, pods: Collection[str]) -> JobStatus:
    """A pod is created only once the Secret that it mounts is there. `pods`: members that have one of this start."""
    return replace(status, former_token_secret=UNSET) if pods else status


def is_open(ctx: Context) -> bool:
    """A start begins, or no pod carries its token and this operator does not know it: its key is gone, or the job's uid is
    another one, as after the restore of a backup.
    """
    return ctx.status.trainers.desired == 0 or not (ctx.observed.pods or ctx.status.token_secret in _known(ctx))


def creates(ctx: Context, status: JobStatus, with_pods: bool, unprepared: bool) -> tuple[Create, ...]:
    """The Secret, before the first pod that mounts it; then it is there, and the operator has no right to look. Again, once a pod
    is given up that its node could not prepare: the Secret may have been deleted.
    """
    token = _known(ctx).get(status.token_secret)
    first = with_pods and not (ctx.status.seen and ctx.observed.pods) and not _is_there(ctx)
    return (Create(secret(ctx.observed.job, token)),) if token and (first or unprepared) else ()


def _is_there(ctx: Context) -> bool:
    """A quota or a policy has refused the Secret, which they do before the server looks whether it exists; and pods before have
    mounted it. Under a new key, as after the loss of the former one, they have mounted another.
    """
    fault = ctx.observed.rejection
    refused = fault is not None and fault.object == f"Secret {ctx.status.token_secret}"
    return refused and bool(ctx.status.incarnations) and not ctx.status.former_token_secret


def describe(ctx: Context) -> str:
    """What to do about a coordinator that takes another token than this operator's; empty for nothing."""
    serving = ctx.coordinator is not None and ctx.coordinator.is_serving
    if not serving or ctx.observed.report is not None or ctx.status.token_secret in _known(ctx):
        return ""
    name = mounted_name(ctx.observed.job)
    return (
        f"TokenUnknown: the pods carry the token of Secret {name}, which no key of this operator made, and which it may not "
        "read; training goes on; to control the job, set the chart's rbac.readTokens=true, or suspend and resume the job"
    )


def _known(ctx: Context) -> dict[str | msgspec.UnsetType, str]:
    """Tokens that this operator can make, by their Secret's name."""
    return {secret_name(ctx.observed.job, token): token for token in ctx.observed.tokens}
