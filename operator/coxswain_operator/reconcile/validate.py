"""Does everything that the job names exist, and does it fit together? Faults become a condition, never a refusal."""

from __future__ import annotations

import hashlib
import marshal
from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeAlias

from coxswain.api.field_errors import UNKNOWN_FIELD, UNSUPPORTED_VALUE, FieldError
from coxswain.api.resolve import resolve
from coxswain.config import JobConfig
from coxswain.wire import Fault
from coxswain_operator.reconcile.actions import Observed
from coxswain_operator.reconcile.references import mix_name, named, policy_name, source_names
from coxswain_operator.views import Manifest

_NEWER_KINDS = (
    "; the installed kinds are newer than the operator: upgrade it, or apply the kinds of its release (`crds/`)"
)
_VERSION = 2  # of marshal: later ones write equal values in different ways


Resolution: TypeAlias = tuple[JobConfig | None, tuple[Fault, ...]]


class LatestResolutions:
    """Of each job by its uid, with a digest of what it was resolved from: most passes find what the pass before has found.

    Only the latest: an edit of a source resolves all jobs that read it again, and what they were before is of no use.
    """

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._of: OrderedDict[str, tuple[bytes, Resolution]] = OrderedDict()

    def get(self, uid: str, content: bytes) -> Resolution:
        digest = hashlib.blake2b(content, digest_size=16).digest()
        known = self._of.pop(uid, None)
        found = known if known is not None and known[0] == digest else (digest, _resolved(content))
        self._of[uid] = found
        if len(self._of) > self._most:
            self._of.popitem(last=False)
        return found[1]


_LATEST = LatestResolutions()


def resolve_config(observed: Observed) -> Resolution:
    """The resolved job, or all faults. What other jobs of the namespace read resolves this one no second time."""
    job, uid = observed.job, str(observed.job["metadata"]["uid"])
    sources = named(observed.sources, source_names(job, observed.mixes))
    mixes = named(observed.mixes, {mix_name(job)} - {""})
    policies = named(observed.policies, {policy_name(job)} - {""})
    others = [_heads(found) for found in (sources, mixes, policies)]
    return _LATEST.get(uid, marshal.dumps((*_heads((job,)), *others, uid), _VERSION))


def _heads(manifests: Iterable[Manifest]) -> list[Manifest]:
    """What a resolution reads of objects."""
    return [
        {
            "metadata": {key: m["metadata"][key] for key in ("name", "namespace") if key in m["metadata"]},
            "spec": m.get("spec", {}),
        }
        for m in manifests
    ]


def _resolved(content: bytes) -> Resolution:
    job, sources, mixes, policies, uid = marshal.loads(content)
    answer = resolve(job, sources, mixes, policies, uid)
    if isinstance(answer, JobConfig):
        return answer, ()
    return None, tuple(Fault(reason=f.reason, message=f"{f.text}{_NEWER_KINDS * _is_newer(f)}") for f in answer)


def _is_newer(fault: FieldError) -> bool:
    """Whether the API server knows the field or value, as it does not look into templates in whole: else it had refused it."""
    return fault.message.startswith((UNKNOWN_FIELD, UNSUPPORTED_VALUE)) and ".template" not in fault.path
