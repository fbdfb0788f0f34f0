"""The model that a job names: one of the Llama family, or a class of the user's own that the trainers' image can import."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coxswain.config import CustomModel, ModelConfig
from coxswain.errors import Refused
from coxswain.holdings import ParameterSpec
from coxswain.models import parameter_specs
from coxswain_train.model.llama import Decoder, Llama, Rotary
from coxswain_train.model.tensor_parallel import ModelPart

NEEDED = ("stack", "rotary", "embed", "token_losses", "weights", "leave_out_empty_rows", "parameter_specs")
_SHOWN = 3  # differing parameters that a message names


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


def decoder_of(model: ModelConfig, vocabulary: int, part: ModelPart | None = None, ids: int = 0) -> Decoder:
    """A rank's part of the model, its weights without values; a class of the user's own is always whole.

    `ids`: of the tokenizer; 0: unknown.

    Raises Refused "BadModel" where the user's class cannot be had or used, or where it would have to be split.
    """
    if model.custom is None:
        return Llama(model, vocabulary, part, ids)
    if part is not None and not (part.first and part.last and part.degree == 1):
        raise _bad(model.custom, "is whole on each device; set parallelism.tensor and .pipeline to 1")
    made: Decoder = _called(model.custom, "cannot be made", lambda kind: kind(model, vocabulary, **_arguments(model)))
    if missing := [name for name in NEEDED if not hasattr(made, name)]:
        raise _bad(model.custom, f"lacks {', '.join(missing)}, which the protocol Decoder names")
    specs = {spec.name: spec.shape for spec in specs_of(model, vocabulary)}
    found = {name: tuple(weight.shape) for name, weight in made.weights().items()}
    if wrong := list(_differences(specs, found)):
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise _bad(model.custom, f"has other weights than its parameter_specs: {'; '.join(wrong[:_SHOWN])}{more}")
    if unfit := list(_unfit(made.weights())):
        raise _bad(model.custom, f"has weights that cannot be trained: {'; '.join(unfit[:_SHOWN])}")
    if len(made.stack) != model.layers:
        raise _bad(model.custom, f"has {len(made.stack)} layers in its stack, model.custom.layers is {model.layers}")
    return made


def specs_of(model: ModelConfig, vocabulary: int) -> Sequence[ParameterSpec]:
    """The parameters of the whole model: what `coxswain.models` knows without torch, or what the user's class says."""
    if model.custom is None:
        return parameter_specs(model, vocabulary)
    found: Sequence[ParameterSpec] = _called(
        model.custom,
        "has no parameter_specs",
        lambda kind: kind.parameter_specs(model, vocabulary, **_arguments(model)),
    )
    return found


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


def _differences(specs: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    for name in [*found, *(specs.keys() - found.keys())]:
        mine, said = found.get(name), specs.get(name)
        if mine != said:
            yield f"{name} is {_shape(mine)}, the specs say {_shape(said)}"


def _unfit(weights: Mapping[str, nn.Parameter]) -> Iterator[str]:
    """Ranks share the rows of every weight, and each has a gradient."""
    for name, weight in weights.items():
        if not weight.dim() or not weight.numel():
            yield f"{name} has the shape {_shape(tuple(weight.shape))}, without a row; give a single number [1]"
        elif not weight.requires_grad:
            yield f"{name} takes no gradient; make it a buffer"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


def _line(error: BaseException) -> str:
    text = str(error).partition("\n")[0][:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _bad(custom: CustomModel, what: str) -> Refused:
    return Refused("BadModel", f"model.custom.class {custom.path!r}: {what}")
