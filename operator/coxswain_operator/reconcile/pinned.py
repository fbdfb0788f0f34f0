"""What all pods of an attempt are made of: settled when it starts, so that a pod which is replaced equals its peers.

A start settles it, and so does the replacement of all pods at once: then no peer has another one.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from coxswain.api.effects import pinned_part
from coxswain.api.kinds import BY_NAME
from coxswain.config import JobConfig
from coxswain.membership.mix_record import mix_under, record_of, without_record
from coxswain.structs import UNDECODABLE
from coxswain.wire import Fault
from coxswain_operator.children import KINDS
from coxswain_operator.children.configuration import JOB, SPECS, attempt_record, config_map_name, job_in, record_name
from coxswain_operator.children.gangs import BACKENDS
from coxswain_operator.children.scheduling import pod_group
from coxswain_operator.reconcile import incarnations
from coxswain_operator.reconcile.actions import Observed
from coxswain_operator.reconcile.status import GangScheduling, Images, JobStatus, Pinned
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest

Specs = Mapping[str, Mapping[str, Manifest]]
"""The pinned parts of specs, by kind and name."""


@dataclass(frozen=True, slots=True)
class Start:
    """What the pods of one start are made of."""

    pinned: Pinned  # as the status names it
    config: JobConfig  # job.json: what the start began with, under the mix as it is now
    begun: JobConfig  # as it was then
    specs: Specs  # likewise
    recorded: str = ""  # job.json as stored, which a newer release may have written; empty: none yet

    def job_of_pods(self, job: Manifest) -> Manifest:
        """The job with the spec that the pods are made of."""
        spec = self.specs["TrainingJob"][job["metadata"]["name"]]
        images = {
            "image": self.pinned.images.trainers,
            "data": {**spec.get("data", {}), "image": self.pinned.images.data},
        }
        return {**job, "spec": {**spec, **images}}

    def settings_of_pods(self, settings: Settings) -> Settings:
        """The installation's, but that pods are placed as their peers are."""
        gang = self.pinned.gang_scheduling
        if not gang or gang.backend not in ("", *BACKENDS):
            return settings
        return dataclasses.replace(settings, gang_backend=gang.backend, gang_scheduler=gang.scheduler)

    def settings_of_children(self, settings: Settings) -> Settings:
        """Likewise; of groups only those are made and kept that the installation has the API and the rights for."""
        pinned = self.settings_of_pods(settings)
        return pinned if pinned.gang_backend == settings.gang_backend else dataclasses.replace(pinned, gang_backend="")

    def record(self, job: Manifest) -> Manifest:
        """The ConfigMap that keeps what this start began with."""
        return attempt_record(job, self.begun, self.specs, self.pinned.hash)


def start_of(
    observed: Observed, status: JobStatus, settings: Settings, wanted: JobConfig | None, faults: tuple[Fault, ...]
) -> tuple[Start | None, tuple[Fault, ...]]:
    """The start that pods belong to; None: the faults say why there cannot be one."""
    if wanted is not None and status.last_checkpoint and status.stream_hash not in (None, wanted.stream_hash()):
        wanted, faults = None, (*faults, _other_stream(observed.job, status.last_checkpoint.step))
    started = bool(status.trainers.desired) and has_pods(observed, status)
    kept = _kept(observed, status.pinned, wanted, settings) if started else None
    fresh = _fresh(observed, settings, wanted) if wanted is not None and kept is None else None
    if not started:
        return fresh, faults
    pinned = status.pinned
    if kept is None and pinned is not None and (fresh is None or fresh.pinned.hash != pinned.hash):
        return None, (*faults, _lost(observed, pinned))
    return _placed_as_its_peers(kept or fresh, observed, status, settings), faults


def _placed_as_its_peers(
    start: Start | None, observed: Observed, status: JobStatus, settings: Settings
) -> Start | None:
    """With the gang scheduling of the pods that exist. Of an earlier release only the group of this start shows it."""
    gang = status.pinned.gang_scheduling if status.pinned else UNSET
    if start is None:
        return None
    if not gang:
        group = pod_group(observed.job, incarnations.numbers(status).default.number)
        grouped = any(c.name == group and c.kind not in KINDS for c in observed.children)
        gang = _gang_scheduling(settings) if grouped else GangScheduling(backend="")
    return dataclasses.replace(start, pinned=replace(start.pinned, gang_scheduling=gang))


def _gang_scheduling(settings: Settings) -> GangScheduling:
    return GangScheduling(backend=settings.gang_backend, scheduler=settings.gang_scheduler)


def has_pods(observed: Observed, status: JobStatus) -> bool:
    """Whether a current pod may still run or start."""
    numbers = incarnations.numbers(status)
    return any(p.is_active and numbers.of(p.member).number == p.incarnation for p in observed.pods)


def _fresh(observed: Observed, settings: Settings, config: JobConfig) -> Start:
    """A start as the specs are now."""
    images, specs = images_of(observed.job, settings), specs_of(observed, config)
    constant = replace(config, mix=without_record(config.mix))
    content = msgspec.json.encode((constant, specs, images), order="deterministic")
    name = hashlib.sha256(content).hexdigest()[:10]
    return Start(Pinned(hash=name, images=images, gang_scheduling=_gang_scheduling(settings)), config, config, specs)


def _kept(observed: Observed, pinned: Pinned | None, wanted: JobConfig | None, settings: Settings) -> Start | None:
    """The start as it was recorded, under the mix as it is now. None: the record, or what the mix was last, is gone."""
    if pinned is None:
        return _adopted(observed, settings, wanted)
    record = _data(observed, record_name(observed.job, pinned.hash))
    begun, specs = job_in(record), _decoded_specs(record)
    if begun is None or specs is None:
        return None
    latest = wanted if wanted is not None and _same_stream(begun, wanted) else None
    if latest is None:
        latest = job_in(_data(observed, config_map_name(observed.job, pinned.hash)))
    return None if latest is None else Start(pinned, _under_mix(begun, latest), begun, specs, record[JOB])


def _adopted(observed: Observed, settings: Settings, wanted: JobConfig | None) -> Start | None:
    """The start of an earlier release, which kept no record: as its pods have read it."""
    data = _data(observed, config_map_name(observed.job, ""))
    begun = job_in(data)
    if begun is None:
        return None
    images = images_of(observed.job, settings)
    trainers = next((p.image for p in observed.pods if p.role == "trainer" and p.image), images.trainers)
    others = next((i for p in observed.pods if (i := p.data_image or p.image * (p.role != "trainer"))), images.data)
    pinned = Pinned(hash="", images=Images(trainers=trainers, data=others))
    specs = specs_of(observed, wanted or begun)
    latest = wanted if wanted is not None and _same_stream(begun, wanted) else begun
    return Start(pinned, _under_mix(begun, latest), begun, specs, data[JOB])


def _same_stream(one: JobConfig, other: JobConfig) -> bool:
    return one.stream_hash() == other.stream_hash()


def _under_mix(begun: JobConfig, latest: JobConfig) -> JobConfig:
    return replace(begun, mix=mix_under(begun.mix, record_of(latest.mix, 0)))


def _other_stream(job: Manifest, step: int) -> Fault:
    mix = (job["spec"].get("mixRef") or {}).get("name")
    named = f"DataMix {mix}, or a DataSource that it names," if mix else "spec.mix, or a DataSource that it names,"
    return Fault(
        "StreamChanged",
        f"{named} gives another stream than the checkpoint before step {step} belongs to; restore its seed, sources, formats and "
        "tokenizers, or create another job with another checkpoint.uri",
    )


def _lost(observed: Observed, pinned: Pinned) -> Fault:
    name = record_name(observed.job, pinned.hash)
    return Fault(
        "ConfigurationLost",
        f"ConfigMap {name}, which keeps what the attempt began with, is gone, damaged or of a newer release, and the specs give "
        "another configuration: no pod is replaced; take the change of the spec or of the release back, or suspend and resume "
        "the job",
    )


def _data(observed: Observed, name: str) -> Mapping[str, str]:
    return next((c.data for c in observed.children if c.kind == "ConfigMap" and c.name == name), {})


def _decoded_specs(data: Mapping[str, str]) -> Specs | None:
    try:
        return msgspec.json.decode(data.get(SPECS, "").encode(), type=dict[str, dict[str, dict[str, Any]]])
    except UNDECODABLE:
        return None


def images_of(job: Manifest, settings: Settings) -> Images:
    """The images as spec and settings are now."""
    spec = job["spec"]
    return Images(
        trainers=spec.get("image") or settings.train_image,
        data=spec.get("data", {}).get("image") or settings.data_image,
    )


def specs_of(observed: Observed, config: JobConfig) -> Specs:
    """What an attempt keeps of the job's spec and of each object that it reads, as far as they exist."""
    policy = (observed.job["spec"].get("parallelismRef") or {}).get("name", "")
    named = {
        "TrainingJob": ((observed.job,), {observed.job["metadata"]["name"]}),
        "ParallelismPolicy": (observed.policies, {policy}),
        "DataMix": (observed.mixes, {config.mix.name}),
        "DataSource": (observed.sources, {s.source for s in config.mix.sources}),
    }
    return {
        kind: {name: part(kind, o) for o in objects if (name := o["metadata"]["name"]) in wanted}
        for kind, (objects, wanted) in named.items()
    }


def part(kind: str, manifest: Manifest) -> Manifest:
    """What an attempt keeps of the object's spec."""
    kept: Manifest = pinned_part(BY_NAME[kind].spec, manifest["spec"], BY_NAME[kind].effect)
    return kept
