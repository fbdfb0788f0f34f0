"""What the pod templates of a job set that neither the namespace's Pod Security level nor the administrator admits."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from coxswain.api.field_errors import FieldError, join_path, shorten
from coxswain.api.pod_template import is_former
from coxswain_operator.children.pod_security import LEVELS, Path, Violation, violations
from coxswain_operator.settings import TemplatePolicy
from coxswain_operator.views import Manifest

REASON = "TemplateForbidden"
ENFORCE = "pod-security.kubernetes.io/enforce"  # label of a namespace
_CREDENTIALS = ("serviceAccountToken", "podCertificate")  # sources of a projected volume
# Names that a pod may give: the field, what it names, and the list that admits it.
_NAMED = (
    ("serviceAccountName", "service account", "serviceAccounts"),
    ("serviceAccount", "service account", "serviceAccounts"),
    ("priorityClassName", "priority class", "priorityClasses"),
    ("schedulerName", "scheduler", "schedulers"),
)


def forbidden(
    path: str, template: Manifest, pod: Manifest, policy: TemplatePolicy, enforced: str = ""
) -> Iterator[FieldError]:
    """Faults of the template at `path`; `pod` is what it makes of ours. `enforced`: the level that the namespace names."""
    level = enforced if enforced in LEVELS else policy.level
    found = (v for v in violations(pod["metadata"], pod["spec"], level) if enforced in LEVELS or not _admits(policy, v))
    for violation in found:
        where = _place(path, template, pod, violation.path)
        shown = "not set" if violation.value is None else shorten(violation.value)
        message = f"{shown} is refused by Pod Security level {level}"
        yield FieldError(where, message, shown, violation.allowed, _way_out(violation, enforced), reason=REASON)
    for volume, source in _credentials(pod["spec"]) if "ServiceAccountTokens" not in policy.allow else ():
        where = _place(path, template, pod, ("spec", "volumes", volume, "projected", "sources", source))
        message, out = (
            "gives the pod credentials of Kubernetes",
            _ask("adds ServiceAccountTokens to podTemplates.allow"),
        )
        yield FieldError(where, message, allowed="none", way_out=f"remove it, or {out}", reason=REASON)
    yield from _unnamed(path, template, pod["spec"], policy)


def _admits(policy: TemplatePolicy, violation: Violation) -> bool:
    """Beyond the level. A namespace's own level has no exceptions: the API server enforces it."""
    if violation.control == "HostPath":
        folder = posixpath.normpath(str(violation.value))
        within = (posixpath.normpath(root) for root in policy.host_paths)
        if any(folder == root or folder.startswith(root.rstrip("/") + "/") for root in within):
            return True
    named = violation.control == "Capabilities" and violation.value in policy.capabilities
    return named or violation.control in policy.allow


def _way_out(violation: Violation, enforced: str) -> str:
    own = "set it" if violation.value is None else "change it"
    if enforced in LEVELS:
        return f"{own}, or {_ask(f'changes the label {ENFORCE} of the namespace')}"
    return f"{own}, or {_ask(f'adds {violation.control} to podTemplates.allow, or labels the namespace {ENFORCE}')}"


def _ask(what: str) -> str:
    return f"the cluster's administrator {what}"


def _credentials(spec: Manifest) -> Iterator[tuple[int, int]]:
    """Volume and source of everything that authenticates a pod to the API server."""
    for volume, item in enumerate(spec["volumes"]):
        for source, projected in enumerate((item.get("projected") or {}).get("sources") or ()):
            if any(projected.get(kind) is not None for kind in _CREDENTIALS):
                yield volume, source


def _unnamed(path: str, template: Manifest, spec: Manifest, policy: TemplatePolicy) -> Iterator[FieldError]:
    """Names that no list admits. What a pod does not name is its namespace's default."""
    lists = {
        "serviceAccounts": policy.service_accounts,
        "priorityClasses": policy.priority_classes,
        "schedulers": policy.schedulers,
    }
    for field, kind, key in _NAMED:
        name = spec.get(field)
        if name and not any(fnmatchcase(str(name), pattern) for pattern in lists[key]):
            allowed = ", ".join(lists[key]) or "none"
            out = f"name another, or {_ask(f'adds it to podTemplates.{key}')}"
            where = f"{_spec_path(path, template)}.{field}"
            if field not in _spec_of(template):
                where = f"spec.scheduling.{field}"
            yield FieldError(where, f"{kind} {shorten(name)!r} is not admitted", str(name), allowed, out, reason=REASON)


def _place(path: str, template: Manifest, pod: Manifest, within: Path) -> str:
    """Where the template says what the pod has at `within`. Items of lists stand there by name, often at another index."""
    steps: list[str | int] = []
    ours: Any = pod
    theirs: Any = {**template, "spec": _spec_of(template)}
    for step in within:
        if isinstance(step, int):
            item = _member(ours, step)
            index = next((i for i, other in enumerate(theirs or ()) if _same(item, other)), step)
            ours, theirs = item, _member(theirs, index)
            steps.append(index)
        else:
            ours, theirs = _member(ours, step), _member(theirs, step)
            steps.append(step)
    return f"{path}.{join_path(steps[1:] if is_former(template) else steps)}"


def _member(holder: Any, step: str | int) -> Any:
    try:
        return holder[step]
    except (LookupError, TypeError):  # the template says nothing there
        return None


def _same(ours: Any, theirs: Any) -> bool:
    """Whether the items of two lists are one: by the key that merges them."""
    key = next((key for key in ("containerPort", "name") if isinstance(ours, dict) and key in ours), "")
    return bool(theirs.get(key) == ours[key] if key else theirs == ours)


def _spec_of(template: Manifest) -> Manifest:
    spec: Manifest = template if is_former(template) else template.get("spec") or {}
    return spec


def _spec_path(path: str, template: Manifest) -> str:
    return path if is_former(template) else f"{path}.spec"


def distinct(faults: Iterable[FieldError]) -> list[FieldError]:
    """Each place once: two roles share the template of the data services."""
    return list({fault.path: fault for fault in faults}.values())
