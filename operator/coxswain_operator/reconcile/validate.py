"""Does everything that the job names exist, and does it fit together? Faults become a condition, never a refusal."""

from __future__ import annotations

from coxswain.api.field_errors import FieldError
from coxswain.api.resolve import resolve
from coxswain.config import JobConfig
from coxswain.wire import Fault
from coxswain_operator.children import PodPlan
from coxswain_operator.reconcile.actions import Observed
from coxswain_operator.settings import Settings


def resolve_config(observed: Observed, settings: Settings) -> tuple[JobConfig | None, tuple[Fault, ...]]:
    """The resolved job, or all faults."""
    job = observed.job
    answer = resolve(
        job, list(observed.sources), list(observed.mixes), list(observed.policies), str(job["metadata"]["uid"])
    )
    faults = answer if isinstance(answer, list) else _template_faults(observed, answer, settings)
    if isinstance(answer, JobConfig) and not faults:
        return answer, ()
    return None, tuple(Fault(reason=f.reason, message=f.text) for f in faults)


def _template_faults(observed: Observed, config: JobConfig, settings: Settings) -> list[FieldError]:
    """No pod is made of a template that cannot be judged."""
    try:
        plan = PodPlan(observed.job, config, settings, attempt=0, start=0)
        return plan.template_faults(observed.pod_security)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        text = f"no pod can be made of the job's templates: {type(error).__name__}: {error}"
        return [FieldError("spec", text, way_out="correct the templates", reason="TemplateUnusable")]
