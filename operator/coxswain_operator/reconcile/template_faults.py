"""Are the templates that this start's pods are made of admitted? Faults become a condition before a pod exists."""

from __future__ import annotations

from coxswain.api.field_errors import FieldError
from coxswain.wire import Fault
from coxswain_operator.children import PodPlan
from coxswain_operator.reconcile.actions import Observed
from coxswain_operator.reconcile.pinned import Start
from coxswain_operator.settings import Settings


def template_faults(observed: Observed, start: Start, settings: Settings) -> tuple[Fault, ...]:
    """No pod is made of a template that cannot be judged."""
    try:
        plan = PodPlan(
            start.job_of_pods(observed.job), start.config, start.settings_of_pods(settings), attempt=0, start=0
        )
        found = plan.template_faults(observed.pod_security)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        text = f"no pod can be made of the job's templates: {type(error).__name__}: {error}"
        found = [FieldError("spec", text, way_out="correct the templates", reason="TemplateUnusable")]
    return tuple(Fault(reason=fault.reason, message=fault.text) for fault in found)
