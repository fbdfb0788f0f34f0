"""Whether a job's model and trainers can have the layout that its policy asks for: every fault, before a pod starts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from msgspec.structs import replace

from coxswain.api.auto_faults import NOT_SPLIT, TOO_SMALL, auto_faults
from coxswain.api.configure import model_config, parallel_config
from coxswain.api.field_errors import FieldError
from coxswain.api.memory_faults import laid_out, memory_faults, shape_of, touched
from coxswain.api.parallelism import ParallelismPolicySpec
from coxswain.api.trainingjob import TrainingJobSpec
from coxswain.config import ModelConfig, ParallelConfig
from coxswain.cost.ulysses import key_heads_of
from coxswain.holdings import tensor_faults
from coxswain.models import parameter_specs

NO_LAYOUT = "LayoutInvalid"  # reason of a condition
MOST_STAGES = 4096  # of all replicas of a layout of one's own

_ROUNDED = 64  # a vocabulary that follows the tokenizer is a multiple of it

# From a parameter's name to the field of the model that cannot be shared.
_FIELDS = {
    "q_proj": "heads", "o_proj": "heads", "k_proj": "kvHeads", "v_proj": "kvHeads", "gate_proj": "feedForward",
    "up_proj": "feedForward", "down_proj": "feedForward", "embed_tokens": "vocabulary", "lm_head": "vocabulary",
}  # fmt: skip


def layout_faults(spec: TrainingJobSpec, policy: ParallelismPolicySpec, under: str) -> list[FieldError]:
    """Every fault; `under` is the policy's place, such as `spec.parallelism`."""
    if policy.mode == "Auto":
        return [*_heads(policy, model_config(spec.model), under), *auto_faults(spec, policy, under)]
    faults = _shape_faults(spec, policy, under)
    return faults or memory_faults(spec, policy, under, lambda other: not _shape_faults(spec, other, under))


def _shape_faults(spec: TrainingJobSpec, policy: ParallelismPolicySpec, under: str) -> list[FieldError]:
    model = model_config(spec.model)
    if faults := [*_whole_model(spec, policy), *_many_stages(policy, under)]:
        return faults
    faults = [*_degrees(spec, policy, model, under)]
    faults += _layers(policy, model, under)
    faults += [] if faults else _heads(policy, model, under)
    return faults or _capacity(spec, policy, under)


def _whole_model(spec: TrainingJobSpec, policy: ParallelismPolicySpec) -> Iterator[FieldError]:
    """A model of the user's own is whole on each device: only the Llama family's layers are written to be split."""
    shapes = [[stage.tensor for stage in r.stages] for r in policy.layout.replicas] if policy.layout else []
    split = any(len(stages) > 1 or stages[0] > 1 for stages in shapes) or policy.tensor * policy.pipeline > 1
    if spec.model.custom and split:
        asked = "a layout" if shapes else f"tensor {policy.tensor}, pipeline {policy.pipeline}"
        message = f"a model of your own is whole on each device; the policy has {asked}"
        way_out = "use one device a replica, or train a model of the Llama family"
        yield FieldError("spec.model.custom", message, way_out=way_out, reason=NOT_SPLIT)


def _many_stages(policy: ParallelismPolicySpec, under: str) -> Iterator[FieldError]:
    """More stages than the operator can look at between two other jobs."""
    stages = sum(shape.count * len(shape.stages) for shape in policy.layout.replicas) if policy.layout else 0
    if stages > MOST_STAGES:
        message = f"all replicas together have {stages} stages"
        way_out = "use fewer replicas or stages, or tensor and pipeline, which have no such limit"
        allowed = f"at most {MOST_STAGES}"
        yield FieldError(f"{under}.layout.replicas", message, str(stages), allowed, way_out, reason=NO_LAYOUT)


def least_trainers(spec: TrainingJobSpec) -> int:
    return spec.trainers.min_count or spec.trainers.count


def _degrees(
    spec: TrainingJobSpec, policy: ParallelismPolicySpec, model: ModelConfig, under: str
) -> Iterator[FieldError]:
    """Tensor groups that the model cannot be shared by, or that do not fit on one trainer."""
    for place, degree in _tensor_places(policy, under):
        yield from _shared(place, degree, model, spec.trainers.devices_per_trainer)
        yield from _on_one_trainer(place, degree, spec.trainers.devices_per_trainer, policy.layout is not None)


def _tensor_places(policy: ParallelismPolicySpec, under: str) -> Iterator[tuple[str, int]]:
    """Each field that gives a degree, with its value."""
    if policy.layout is None:
        yield f"{under}.tensor", policy.tensor
        return
    for r, shape in enumerate(policy.layout.replicas):
        for s, stage in enumerate(shape.stages):
            yield f"{under}.layout.replicas[{r}].stages[{s}].tensor", stage.tensor


def _shared(place: str, degree: int, model: ModelConfig, devices: int) -> Iterator[FieldError]:
    model = replace(model, custom=None)  # whose arguments may be of any shape
    uneven = unshared(model, degree)
    if uneven:
        allowed = ", ".join(str(d) for d in range(1, devices + 1) if devices % d == 0 and not unshared(model, d))
        message = f"a tensor group of {degree} cannot share the model evenly: {' and '.join(uneven)}"
        way_out = "use an allowed degree, or a model with other numbers"
        yield FieldError(place, message, str(degree), allowed, way_out, reason=NO_LAYOUT)


@lru_cache(maxsize=1024)
def unshared(model: ModelConfig, degree: int) -> tuple[str, ...]:
    """Which numbers of the model a tensor group of this degree cannot share, such as `kvHeads 2`."""
    vocabulary = model.vocabulary or _ROUNDED
    specs = parameter_specs(replace(model, layers=1), vocabulary)
    numbers = {
        "heads": f"heads {model.heads}", "kvHeads": f"kvHeads {model.kv_heads}",
        "feedForward": f"feedForward {model.feed_forward}",
        "vocabulary": f"vocabulary {model.vocabulary or f'0 (the tokenizer, rounded up to a multiple of {_ROUNDED})'}",
    }  # fmt: skip
    names = [fault.partition(": ")[0] for fault in tensor_faults(specs, [degree])]
    fields = dict.fromkeys(next((f for part, f in _FIELDS.items() if part in name), name) for name in names)
    return tuple(numbers.get(field, field) for field in fields)


def _heads(policy: ParallelismPolicySpec, model: ModelConfig, under: str) -> Iterator[FieldError]:
    """Whether members of rings have heads to exchange, where the policy wants it."""
    degrees = [degree for _, degree in _tensor_places(policy, under)]
    if policy.hybrid_data.attention == "Ulysses" and key_heads_of(model.kv_heads, degrees) == 1:
        groups = f" over tensor groups of {', '.join(map(str, sorted({*degrees})))}" if max(degrees) > 1 else ""
        message = f"members of a ring have no key heads to exchange: kvHeads {model.kv_heads}{groups}"
        way_out = f"set attention: Auto{', or lower tensor' if groups else ''}"
        yield FieldError(f"{under}.hybridData.attention", message, "Ulysses", "Ring, Auto", way_out, reason=NO_LAYOUT)


def _on_one_trainer(place: str, degree: int, devices: int, shaped: bool) -> Iterator[FieldError]:
    """A group exchanges activations in every layer, and shares what its constructor hands over: it never spans trainers."""
    if shaped and degree > devices:
        message = f"a tensor group of {degree} devices does not fit on a trainer of devicesPerTrainer {devices}"
        way_out = "lower it, or raise trainers.devicesPerTrainer"
        yield FieldError(place, message, str(degree), f"at most {devices}", way_out, reason=NO_LAYOUT)
    if not shaped and devices % degree:
        message = f"parallelism.tensor {degree} must divide trainers.devicesPerTrainer {devices}"
        yield FieldError(place, message, str(degree), way_out="change one of the two", reason=NO_LAYOUT)


def _layers(policy: ParallelismPolicySpec, model: ModelConfig, under: str) -> Iterator[FieldError]:
    if policy.layout is None and policy.pipeline > model.layers:
        message = f"{policy.pipeline} stages cannot share {model.layers} layers: each needs one"
        way_out = "lower pipeline, or use a model with more layers"
        value, allowed = str(policy.pipeline), f"at most {model.layers}"
        yield FieldError(f"{under}.pipeline", message, value, allowed, way_out, reason=NO_LAYOUT)
    for r, shape in enumerate(policy.layout.replicas if policy.layout else ()):
        have = sum(stage.layers for stage in shape.stages)
        if have != model.layers:
            message = f"the stages have {have} layers, the model has {model.layers}"
            place, way_out = f"{under}.layout.replicas[{r}].stages", "make their layers add up to the model's"
            yield FieldError(place, message, str(have), str(model.layers), way_out, reason=NO_LAYOUT)


def _capacity(spec: TrainingJobSpec, policy: ParallelismPolicySpec, under: str) -> list[FieldError]:
    """Whether minCount trainers make a replica, and the replicas hold the longest sequence."""
    trainers, each = least_trainers(spec), spec.trainers.devices_per_trainer
    parallel = parallel_config(policy)
    if trainers * each < parallel.least_devices:
        return [_too_few(spec, parallel)]
    if not parallel.layout:
        return _longest(spec, policy, trainers * each // parallel.least_devices)
    layout = laid_out(shape_of(parallel), model_config(spec.model).layers, touched(parallel, trainers), each)
    return _longest(spec, policy, layout.largest_ring()) if layout.replicas else [_no_room(spec, parallel, under)]


def _too_few(spec: TrainingJobSpec, parallel: ParallelConfig) -> FieldError:
    trainers, each, needed = least_trainers(spec), spec.trainers.devices_per_trainer, parallel.least_devices
    field = "count" if spec.trainers.min_count is None else "minCount"
    replica = f"a replica of tensor {parallel.tensor} x pipeline {parallel.pipeline}"
    what = "the layout" if parallel.layout else replica
    message = f"{trainers} trainers of {each} devices are {trainers * each} devices; {what} needs {needed}"
    way_out = f"raise trainers.{field} or devicesPerTrainer, or use fewer devices"
    allowed = f"at least {-(-needed // each)}"
    return FieldError(f"spec.trainers.{field}", message, str(trainers), allowed, way_out, reason=TOO_SMALL)


def _no_room(spec: TrainingJobSpec, parallel: ParallelConfig, under: str) -> FieldError:
    trainers, each = least_trainers(spec), spec.trainers.devices_per_trainer
    message = (
        f"{trainers} trainers of {each} devices have no room for it: stages take their devices in the order of the list, "
        f"each from the first trainer with enough left, and {parallel.least_devices} devices would do"
    )
    way_out = "list replicas with larger tensor groups first, or raise trainers.minCount"
    return FieldError(f"{under}.layout.replicas", message, way_out=way_out, reason=TOO_SMALL)


def _longest(spec: TrainingJobSpec, policy: ParallelismPolicySpec, replicas: int) -> list[FieldError]:
    """Whether `replicas` equal ones hold the longest sequence.

    Rule `parallelism-capacity` of coxswain.api.rules says the same of an inline policy at apply time.
    """
    hybrid, longest = policy.hybrid_data, spec.batch.max_sequence_tokens
    held = hybrid.tokens_per_replica * min(hybrid.max_degree, replicas)
    if longest <= held:
        return []
    devices = least_trainers(spec) * spec.trainers.devices_per_trainer
    size = "" if policy.layout else f" of {policy.tensor * policy.pipeline} devices"
    message = (
        f"a sequence of {longest} tokens does not fit: {devices} devices at minCount make {replicas} equal replicas{size}, "
        f"which hold tokensPerReplica {hybrid.tokens_per_replica} x min(maxDegree {hybrid.max_degree}, {replicas}) = "
        f"{held} tokens"
    )
    way_out = "lower batch.maxSequenceTokens, or raise tokensPerReplica, maxDegree or trainers.minCount"
    place = "spec.batch.maxSequenceTokens"
    return [FieldError(place, message, str(longest), f"at most {held}", way_out, reason=TOO_SMALL)]
