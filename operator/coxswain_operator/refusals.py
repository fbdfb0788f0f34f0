"""What the API server's refusal of a child means to users: reason, text, and whether it may pass."""

from __future__ import annotations

from coxswain.errors import Refused, Retryable
from coxswain.wire import Fault
from coxswain_operator.cluster import Conflict, Denied

_KUEUE = "set rbac.kueue=true in the operator's chart: the job is in a queue of Kueue"
_CLASSES = (
    "set rbac.kueue=true in the operator's chart; with watchNamespaces grant it `get` of priority classes besides"
)
_OUTDATED = "apply the CustomResourceDefinitions of the operator's release"
QUOTA = "QuotaExceeded"
_LIMITS = "change the resources in the job's templates, or the namespace's LimitRange"
# What the server's text contains, the reason that users see, and the way out. The first that matches decides.
_KNOWN = (
    ("exceeded quota", QUOTA, "free some of the quota, or raise it"),
    (" per Container is ", "LimitRangeExceeded", _LIMITS),
    (" per Pod is ", "LimitRangeExceeded", _LIMITS),
    ("unknown for quota", "QuotaUnknown", "Kubernetes fills in a quota's status soon after the quota is made"),
    ("admission webhook", "AdmissionDenied", "change what the webhook objects to, or the webhook"),
    ("ValidatingAdmissionPolicy", "AdmissionDenied", "change what the policy objects to, or the policy"),
    ("violates PodSecurity", "PodSecurityViolated", "change the job's templates, or the namespace's level"),
    ("service account", "ServiceAccountMissing", "create it; Kubernetes creates `default` soon after a namespace"),
    ("no PriorityClass", "PriorityClassMissing", "create it, or correct spec.scheduling.priorityClassName"),
    ("is being terminated", "NamespaceTerminating", "create the job in another namespace"),
    ("field not declared in schema", "KindsOutdated", _OUTDATED),
    ('cannot patch resource "pods"', "OperatorNotPermitted", _KUEUE),
    ('resource "workloads"', "OperatorNotPermitted", _KUEUE),
    ("cannot get resource", "OperatorNotPermitted", _CLASSES),
    ("cannot create resource", "OperatorNotPermitted", "give the operator the roles of its chart"),
    ("cannot delete resource", "OperatorNotPermitted", "give the operator the roles of its chart"),
    ("cannot patch resource", "OperatorNotPermitted", "give the operator the roles of its chart"),
)
UNAVAILABLE = "ServerUnavailable"  # away, or it cannot ask a webhook
CONFLICT = "Conflict"  # again and again
# Of what the server never accepts: a request above its limit, which a LimitRange may have filled in, and a field of a newer kind.
_FINAL = (
    ("must be less than or equal to", _LIMITS),
    ("cannot be handled as a NodeQuarantine", _OUTDATED),
)


def fault_of(what: str, error: Refused | Retryable | Conflict) -> Fault:
    """`what`: the object, such as `Pod demo-trainer-0-0`; the fault has it where the server has refused it and may not later.

    Retryable: it is tried again, with a pause.
    """
    if isinstance(error, Retryable):
        return Fault(UNAVAILABLE, f"{what}: the API server fails: {error}; it is tried again", retryable=True)
    if isinstance(error, Conflict):
        text = f"{what}: the API server answers with a conflict each time: {error}; look for a webhook or a quota that causes it"
        return Fault(CONFLICT, f"{text}; it is tried again", retryable=True)
    if not isinstance(error, Denied):
        ways_out = (f"; {out}" for text, out in _FINAL if text in error.message)
        return Fault(error.reason, "".join((error.message, *ways_out)))
    found = ((reason, out) for text, reason, out in _KNOWN if text in error.message)
    reason, way_out = next(found, (error.reason, "it is tried again"))
    return Fault(reason, f"{what} is refused for now: {error.message}; {way_out}", retryable=True, object=what)
