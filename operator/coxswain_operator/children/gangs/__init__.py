"""Groups of pods that a scheduler places all or nothing: one file for each API that schedulers have for it."""

from __future__ import annotations

from coxswain.config import JobConfig
from coxswain_operator.children.common import child
from coxswain_operator.children.gangs.backend import GangBackend, GangSizes
from coxswain_operator.children.gangs.coscheduling import Coscheduling
from coxswain_operator.children.gangs.native import NativePodGroup, NativeWorkload
from coxswain_operator.children.gangs.volcano import Volcano
from coxswain_operator.children.scheduling import pod_group
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest

__all__ = ["BACKENDS", "CHOICES", "GangBackend", "backend_of", "group", "of_pod"]

_ALL: tuple[GangBackend, ...] = (NativePodGroup(), NativeWorkload(), Volcano(), Coscheduling())
BACKENDS = {type(backend).__name__: backend for backend in _ALL}
# What an installation may choose, and the backends for it: the first whose API the server has.
CHOICES: dict[str, tuple[str, ...]] = {
    "None": (),
    "Auto": tuple(BACKENDS),
    "Native": ("NativePodGroup", "NativeWorkload"),
    "Volcano": ("Volcano",),
    "Coscheduling": ("Coscheduling",),
}


def backend_of(settings: Settings) -> GangBackend | None:
    return BACKENDS[settings.gang_backend] if settings.gang_backend else None


def group(job: Manifest, config: JobConfig, settings: Settings, start: int) -> tuple[Manifest, ...]:
    """The group of all pods of one start; none without a backend."""
    backend = backend_of(settings)
    if backend is None:
        return ()
    spec = backend.spec(job, GangSizes(1, config.loaders, min(config.min_trainers, config.trainers)))
    return (child(job, backend.api_version, backend.kind, pod_group(job, start), {"spec": spec}),)


def of_pod(job: Manifest, settings: Settings, role: str, start: int) -> tuple[dict[str, str], dict[str, str], Manifest]:
    """Labels, annotations and fields of the spec that put a pod into the group of its start."""
    backend = backend_of(settings)
    if backend is None:
        return {}, {}, {}
    name, scheduler = pod_group(job, start), settings.gang_scheduler or backend.scheduler
    spec = {**({"schedulerName": scheduler} if scheduler else {}), **backend.pod_spec(name)}
    return backend.pod_labels(name), backend.pod_annotations(name, role), spec
