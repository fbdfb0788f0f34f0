"""Does everything that the job names exist, and does it fit together? Faults become a condition, never a refusal."""

from __future__ import annotations

import marshal
from collections.abc import Iterable
from functools import lru_cache

from coxswain.api.resolve import resolve
from coxswain.config import JobConfig
from coxswain.wire import Fault
from coxswain_operator.reconcile.actions import Observed
from coxswain_operator.views import Manifest

_VERSION = 2  # of marshal: later ones write equal values in different ways


def resolve_config(observed: Observed) -> tuple[JobConfig | None, tuple[Fault, ...]]:
    """The resolved job, or all faults."""
    others = [_heads(found) for found in (observed.sources, observed.mixes, observed.policies)]
    return _resolved(marshal.dumps((*_heads((observed.job,)), *others, observed.job["metadata"]["uid"]), _VERSION))


def _heads(manifests: Iterable[Manifest]) -> list[Manifest]:
    """What a resolution reads of objects."""
    return [
        {
            "metadata": {key: m["metadata"][key] for key in ("name", "namespace") if key in m["metadata"]},
            "spec": m.get("spec", {}),
        }
        for m in manifests
    ]


@lru_cache(maxsize=1024)  # jobs: most passes find what the pass before has found
def _resolved(content: bytes) -> tuple[JobConfig | None, tuple[Fault, ...]]:
    job, sources, mixes, policies, uid = marshal.loads(content)
    answer = resolve(job, sources, mixes, policies, str(uid))
    if isinstance(answer, JobConfig):
        return answer, ()
    return None, tuple(Fault(reason=f.reason, message=f.text) for f in answer)
