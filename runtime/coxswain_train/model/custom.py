"""The model that a job names: one of the Llama family, or a class of the user's own that the trainers' image can import."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coxswain.config import CustomModel, ModelConfig
from coxswain.errors import Refused, text_of
from coxswain.holdings import ParameterSpec
from coxswain.models import parameter_specs
from coxswain_train.model.custom_faults import (
    NEEDED,
    differences,
    left_out,
    listed,
    missing_positions,
    named_twice,
    spec_faults,
    unfit,
    without_values,
)
from coxswain_train.model.llama import Decoder, Llama, Rotary
from coxswain_train.model.tensor_parallel import ModelPart


class CustomDecoder(nn.Module):
    """Base of a model of one's own, with what most decoders answer alike. `Decoder` says what each method means."""

    def rotary(self, positions: Tensor) -> Rotary:
        """Nothing: the model learns its positions, and adds them in `embed`."""
        empty = torch.empty(len(positions), 0, device=positions.device)
        return empty, empty

    def weights(self) -> Mapping[str, nn.Parameter]:
        return dict(self.named_parameters())

    def leave_out_empty_rows(self) -> None:
        """All rows of the vocabulary count in the loss."""


def decoder_of(
    model: ModelConfig, vocabulary: int, part: ModelPart | None = None, ids: int = 0, longest: int = 0
) -> Decoder:
    """A rank's part of the model, its weights without values; a class of the user's own is always whole.

    `ids`: of the tokenizer; 0: unknown. `longest`: tokens of the longest sequence that a class of the user's own must embed; 0:
    that of a run that goes on, whose sequences may all be shorter.

    Raises Refused "BadModel" where the user's class cannot be had or used, or where it would have to be split.
    """
    if model.custom is None:
        return Llama(model, vocabulary, part, ids)
    if part is not None and not (part.first and part.last and part.degree == 1):
        raise _bad(model.custom, "is whole on each device; set parallelism.tensor and .pipeline to 1")
    made: Decoder = _called(model.custom, "cannot be made", lambda kind: _made(kind, model, vocabulary))
    _called(model.custom, "cannot be used", lambda _: _check(made, model, vocabulary))
    if found := missing_positions(made, longest):
        raise _bad(
            model.custom, f"{found}; give it more, such as by model.custom.args, or lower batch.maxSequenceTokens"
        )
    return made


def _made(kind: Any, model: ModelConfig, vocabulary: int) -> Any:
    """What the class draws for its buffers is the same on every rank and in every world: no checkpoint holds them."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return kind(model, vocabulary, **_arguments(model))


def _check(made: Decoder, model: ModelConfig, vocabulary: int) -> None:
    """Raises Refused "BadModel", or whatever the user's properties and methods raise."""
    assert model.custom is not None
    if missing := [name for name in NEEDED if not hasattr(made, name)]:
        raise _bad(model.custom, f"lacks {', '.join(missing)}, which the protocol Decoder names")
    weights = made.weights()
    if wrong := listed(differences(specs_of(model, vocabulary), weights)):
        raise _bad(model.custom, f"has other weights than its parameter_specs: {wrong}")
    if wrong := listed(unfit(weights)):
        raise _bad(model.custom, f"has weights that cannot be trained: {wrong}")
    if wrong := listed(left_out(made, weights)):
        raise _bad(
            model.custom, f"has parameters that its weights() does not name: {wrong}; name them, or make them buffers"
        )
    if wrong := listed(without_values(made)):
        raise _bad(model.custom, f"is on the meta device: {wrong}; make its tensors on the CPU, such as by torch.empty")
    if wrong := listed(named_twice(weights)):
        raise _bad(model.custom, f"names weights twice: {wrong}")
    if len(made.stack) != model.layers:
        raise _bad(model.custom, f"has {len(made.stack)} layers in its stack, model.custom.layers is {model.layers}")


def specs_of(model: ModelConfig, vocabulary: int) -> Sequence[ParameterSpec]:
    """The parameters of the whole model: what `coxswain.models` knows without torch, or what the user's class says."""
    if model.custom is None:
        return parameter_specs(model, vocabulary)
    found = _called(
        model.custom,
        "has no parameter_specs",
        lambda kind: list(kind.parameter_specs(model, vocabulary, **_arguments(model))),
    )
    if wrong := listed(spec_faults(found, model.layers)):
        raise _bad(model.custom, f"has parameter_specs that cannot be used: {wrong}")
    return [ParameterSpec(spec.name, tuple(spec.shape), spec.place) for spec in found]


def placed(made: Decoder, device: torch.device, dtype: torch.dtype) -> Decoder:
    """The model on the device, in the type. Complex buffers, such as rotations, stay complex, which `to` would make real."""
    modules = list(made.modules()) if isinstance(made, nn.Module) else []
    kept = [(m, name, b) for m in modules for name, b in m.named_buffers(recurse=False) if b.is_complex()]
    for module, name, _ in kept:
        setattr(module, name, None)
    made = made.to(device, dtype)
    for module, name, buffer in kept:
        setattr(module, name, buffer.to(device, torch.promote_types(dtype, torch.complex64)))
    return made


def shared_weights(made: Decoder) -> frozenset[str]:
    """Weights of a layer that another layer, or the model outside its layers, has as well. Layers that are recomputed make the
    gradient of each in several parts."""
    layers = Counter(id(w) for layer in made.stack if isinstance(layer, nn.Module) for w in layer.parameters())
    paths = made.named_parameters(remove_duplicate=False) if isinstance(made, nn.Module) else ()
    uses = Counter(id(weight) for _, weight in paths)
    return frozenset(
        name for name, w in made.weights().items() if layers[id(w)] > 1 or (layers[id(w)] and uses[id(w)] > 1)
    )


def _arguments(model: ModelConfig) -> dict[str, Any]:
    assert model.custom is not None
    return model.custom.arguments


def _called(custom: CustomModel, what: str, call: Any) -> Any:
    """Whatever the user's class raises is the user's fault, and named on one line."""
    kind = _imported(custom)
    try:
        return call(kind)
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        raise _bad(custom, f"{what} ({_line(error)})") from error


def _imported(custom: CustomModel) -> Any:
    module, _, name = custom.path.partition(":")
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise _bad(custom, f"cannot be imported ({_line(error)}); {_way(module)}") from error
    if not isinstance(kind := getattr(found, name, None), type):
        raise _bad(custom, f"{module} has no class {name}")
    return kind


def _way(module: str) -> str:
    """Where an interpreter looks: the missing folder is nearly always one of the job's environment."""
    return f"put {module.partition('.')[0]} on PYTHONPATH, or into the trainers' image ({sys.path[-1]})"


def _line(error: BaseException) -> str:
    text = text_of(error).partition("\n")[0][:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _bad(custom: CustomModel, what: str) -> Refused:
    return Refused("BadModel", f"model.custom.class {custom.path!r}: {what}")
