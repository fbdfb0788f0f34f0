"""Which edits wait for the next attempt, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coxswain.api.crd import object_schema
from coxswain.api.field_errors import shorten
from coxswain.api.kinds import BY_NAME
from coxswain.api.schema import with_defaults
from coxswain_operator.reconcile.actions import Observed
from coxswain_operator.reconcile.pinned import Start, images_of, specs_of
from coxswain_operator.reconcile.status import Images
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest

WAY_OUT = "in effect at the next attempt; suspend and resume the job to begin one"


def pending_edits(observed: Observed, start: Start, settings: Settings) -> str:
    """By object and field; empty: none. What does not exist any more is a fault, not an edit."""
    now, images = specs_of(observed, start.config), images_of(observed.job, settings)
    if (now, images) == (start.specs, start.pinned.images):
        return ""
    said = []
    for kind, specs in start.specs.items():
        for name, before in specs.items():
            if name in now[kind] and (changes := ", ".join(_spec_changes(kind, before, now[kind][name]))):
                said.append(f"{kind} {name}: {changes}")
    said += _image_changes(start, observed.job, images)
    return f"{'; '.join(said)}; {WAY_OUT}" if said else ""


def _spec_changes(kind: str, before: Manifest, after: Manifest) -> Iterator[str]:
    """With defaults in both: a newer definition of the kind may add some to what is stored."""
    if before != after:
        schema = object_schema(BY_NAME[kind])["properties"]["spec"]
        yield from _changes(with_defaults(schema, before), with_defaults(schema, after), "")


def _changes(before: Any, after: Any, path: str) -> Iterator[str]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict) and not path.endswith(".template"):
        for name in sorted({*before, *after}):
            yield from _changes(before.get(name), after.get(name), f"{path}.{name}")
    elif isinstance(before, dict | list) or isinstance(after, dict | list):
        yield f"{path[1:]} changed"
    else:
        yield f"{path[1:]} {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    return "unset" if value in (None, "") else str(shorten(value))


def _image_changes(start: Start, job: Manifest, images: Images) -> Iterator[str]:
    """Those of the operator's settings; those of the spec are fields."""
    spec = job["spec"]
    named = {"trainers": spec.get("image"), "data": spec.get("data", {}).get("image")}
    for role, own in named.items():
        before, after = getattr(start.pinned.images, role), getattr(images, role)
        if before != after and not own:
            yield f"the operator's image of {role} {before} -> {after}"
