"""Resolves the custom resources to one frozen JobConfig: applies defaults, follows references.

Faults between objects are conditions with the exact name, never refusals: the order of `kubectl apply` must not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from coxswain import config
from coxswain.api.common import Model
from coxswain.api.configure import Used, job_config, mix_config, model_config, optimizer_config
from coxswain.api.datamix import DataMixSpec
from coxswain.api.datasource import DataSourceSpec, Tokenizer
from coxswain.api.field_errors import FieldError, parse
from coxswain.api.layout_faults import layout_faults
from coxswain.api.parallelism import ParallelismPolicySpec
from coxswain.api.pod_template import template_faults
from coxswain.api.shared_documents import shared_documents
from coxswain.api.trainingjob import TrainingJobSpec
from coxswain.models import parameter_specs
from coxswain.names import CLAIMS_ROOT
from coxswain.parameter_groups import idle_groups
from coxswain.uris import file_uri

Manifest = Mapping[str, Any]
M = TypeVar("M", bound=Model)


def resolve(
    job: Manifest, sources: Iterable[Manifest], mixes: Iterable[Manifest], policies: Iterable[Manifest], uid: str
) -> config.JobConfig | list[FieldError]:
    """The resolved job, or every fault that keeps it from starting; `Fault.reason` is the condition's reason.

    The iterables hold the objects of the job's namespace. `uid` is the job's own.
    """
    spec, faults = _spec(TrainingJobSpec, job, "spec")
    if spec is None:
        return faults
    if faults := template_faults(job.get("spec")):
        return faults
    mix, mix_faults = _mix(spec, by_name(mixes))
    policy, policy_faults = _policy(spec, by_name(policies))
    place = f"DataMix/{spec.mix_ref.name} spec" if spec.mix_ref else "spec.mix"
    used, source_faults = _sources(mix, place, by_name(sources)) if mix else ([], [])
    faults = mix_faults + source_faults + policy_faults
    faults += _tokenizer_faults(used, place)
    if mix and spec.evaluation:
        faults += shared_documents(mix, place, {entry.source_ref.name: source for entry, source in used})
    faults += layout_faults(spec, policy, policy_place(spec)) + muon_faults(spec, policy) if policy else []
    faults += group_faults(model_config(spec.model), optimizer_config(spec.optimizer))
    if faults:
        return faults
    assert mix is not None
    assert policy is not None
    return job_config(job["metadata"], spec, mix_config(spec, mix, used), policy, uid)


def by_name(objects: Iterable[Manifest]) -> dict[str, Manifest]:
    return {item["metadata"]["name"]: item for item in objects}


def _spec(model: type[M], manifest: Manifest, under: str) -> tuple[M | None, list[FieldError]]:
    found, faults = parse(model, manifest.get("spec", {}), under)
    return cast("M | None", found), faults


def _named(
    model: type[M], kind: str, reason: str, path: str, name: str, objects: Mapping[str, Manifest]
) -> tuple[M | None, list[FieldError]]:
    """The spec of the object of that name, or why it cannot be had."""
    if name not in objects:
        way_out = (
            f"create the {kind} {name}, or name one of this namespace: {', '.join(sorted(objects)) or 'there is none'}"
        )
        return None, [FieldError(path, f"{kind} {name!r} does not exist", name, way_out=way_out, reason=reason)]
    return _spec(model, objects[name], f"{kind}/{name} spec")


def _mix(spec: TrainingJobSpec, mixes: Mapping[str, Manifest]) -> tuple[DataMixSpec | None, list[FieldError]]:
    if spec.mix_ref is None:
        return spec.mix, []
    return _named(DataMixSpec, "DataMix", "MixNotFound", "spec.mixRef.name", spec.mix_ref.name, mixes)


def _policy(
    spec: TrainingJobSpec, policies: Mapping[str, Manifest]
) -> tuple[ParallelismPolicySpec | None, list[FieldError]]:
    if spec.parallelism_ref is None:
        return spec.parallelism, []
    name = spec.parallelism_ref.name
    return _named(
        ParallelismPolicySpec, "ParallelismPolicy", "PolicyNotFound", "spec.parallelismRef.name", name, policies
    )


def policy_place(spec: TrainingJobSpec) -> str:
    return f"ParallelismPolicy/{spec.parallelism_ref.name} spec" if spec.parallelism_ref else "spec.parallelism"


def _sources(mix: DataMixSpec, place: str, sources: Mapping[str, Manifest]) -> tuple[list[Used], list[FieldError]]:
    used: list[Used] = []
    faults: list[FieldError] = []
    for index, entry in enumerate(mix.sources):
        path = f"{place}.sources[{index}].sourceRef.name"
        found, wrong = _named(DataSourceSpec, "DataSource", "SourceNotFound", path, entry.source_ref.name, sources)
        faults += wrong
        used += [(entry, found)] if found else []
    return used, faults


def _tokenizer_faults(used: list[Used], place: str) -> list[FieldError]:
    if len({source.tokenizer for _, source in used}) <= 1:
        return []
    said = ", ".join(f"{entry.source_ref.name}: {_describe(source.tokenizer)}" for entry, source in used)
    message = f"the sources of a mix must share one tokenizer, but they differ: {said}"
    way_out = "give the sources the same tokenizer, or mix others"
    return [FieldError(f"{place}.sources", message, way_out=way_out, reason="TokenizerMismatch")]


def _describe(tokenizer: Tokenizer) -> str:
    return tokenizer.file.uri if tokenizer.file else "bytes"


def group_faults(model: config.ModelConfig, optimizer: config.OptimizerConfig) -> list[FieldError]:
    """The groups of the optimizer that choose no parameter: a misspelt one would change nothing.

    Workers judge those of a model of the user's own: its names need torch.
    """
    if model.custom or not optimizer.groups:
        return []
    names = [spec.name for spec in parameter_specs(model, model.vocabulary or 64)]
    way_out = f"correct the glob, or remove the group; names are such as {names[0]}, {names[2]} and {names[-1]}"
    return [
        FieldError(
            f"spec.optimizer.groups[{place}].match", f"{optimizer.groups[place].match!r} {why}",
            optimizer.groups[place].match, way_out=way_out, reason="GroupMatchesNothing",
        )
        for place, why in idle_groups(optimizer.groups, names).items()
    ]  # fmt: skip


def muon_faults(spec: TrainingJobSpec, policy: ParallelismPolicySpec) -> list[FieldError]:
    """Muon needs whole matrices, and a tensor group has parts of them."""
    stages = [stage.tensor for r in policy.layout.replicas for stage in r.stages] if policy.layout else []
    degree = max([policy.tensor, *stages])
    if spec.optimizer.kind != "Muon" or degree == 1:
        return []
    message = f"Muon needs whole matrices, and a tensor-parallel degree of {degree} splits them"
    way_out = "this release cannot join them: set all degrees to 1, or optimizer.kind to AdamW"
    return [FieldError("spec.optimizer.kind", message, "Muon", "AdamW", way_out, reason="MuonUnsupported")]


def claims(job: config.JobConfig) -> list[str]:
    """Names of the PersistentVolumeClaims that the job's pods mount under CLAIMS_ROOT."""
    uris = [job.checkpoint.uri, job.model.init_from, job.parallelism.profile]
    uris += [uri for source in job.mix.sources for uri in (source.uri, source.tokenizer.uri)]
    return sorted({claim for uri in uris if (claim := _claim_of(uri))})


def is_written(job: config.JobConfig, claim: str) -> bool:
    """Whether the job writes to the claim; from all others it reads alone."""
    return claim == _claim_of(job.checkpoint.uri)


def _claim_of(uri: str) -> str:
    """Empty: the uri is of none."""
    prefix = f"{file_uri(CLAIMS_ROOT)}/"
    return uri.removeprefix(prefix).split("/", 1)[0] if uri.startswith(prefix) else ""
