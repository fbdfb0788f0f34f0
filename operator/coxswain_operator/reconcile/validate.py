"""Does everything that the job names exist, and does it fit together? Faults become a condition, never a refusal."""

from __future__ import annotations

from coxswain.api.resolve import resolve
from coxswain.config import JobConfig
from coxswain.wire import Fault
from coxswain_operator.reconcile.actions import Observed


def resolve_config(observed: Observed) -> tuple[JobConfig | None, tuple[Fault, ...]]:
    """The resolved job, or all faults."""
    job = observed.job
    answer = resolve(
        job, list(observed.sources), list(observed.mixes), list(observed.policies), str(job["metadata"]["uid"])
    )
    if isinstance(answer, JobConfig):
        return answer, ()
    return None, tuple(Fault(reason=f.reason, message=f.text) for f in answer)
