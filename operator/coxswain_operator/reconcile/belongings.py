"""Children that are no pods: the difference between those that should exist and those that do."""

from __future__ import annotations

from dataclasses import dataclass

from coxswain.config import JobConfig
from coxswain_operator.children import CONTENT, children
from coxswain_operator.reconcile.situation import Situation
from coxswain_operator.reconcile.values import Create, Delete


@dataclass(frozen=True, slots=True)
class Difference:
    """Pods wait until `deletes` is empty: none must start from a ConfigMap that is about to be replaced."""

    deletes: tuple[Delete, ...]
    creates: tuple[Create, ...]


def difference(s: Situation, config: JobConfig) -> Difference:
    """What has changed is made anew by the next pass. The Secret has no hash: its token never changes."""
    wanted = children(s.observed.job, config, s.settings, s.observed.fresh_token)
    contents = {(m["kind"], m["metadata"]["name"]): m["metadata"]["annotations"].get(CONTENT, "") for m in wanted}
    stale = (c for c in s.observed.children if c.content != contents.get((c.kind, c.name), c.content))
    present = {(c.kind, c.name) for c in s.observed.children}
    missing = (m for m in wanted if (m["kind"], m["metadata"]["name"]) not in present)
    deletes = tuple(Delete(c.kind, c.name, c.uid) for c in stale if not c.deleting)
    return Difference(deletes, tuple(Create(m) for m in missing))
