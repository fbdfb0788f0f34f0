"""The numbers of the cost model: from shipped files, a user's file, or a model's shape."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from coxswain.config import ModelConfig
from coxswain.errors import Refused
from coxswain.presets import PRESETS

SHIPPED = ("a100-40g", "a100-80g", "cpu", "h100-80g")
# ByteScale's models all have 8 key-value heads, unlike the presets of the same names.
_FIELDS = ("layers", "hidden", "heads", "kv_heads", "feed_forward", "vocabulary")
_SHAPES = {
    "llama-7b": (32, 4096, 32, 8, 11008, 32000),
    "llama-13b": (40, 5120, 40, 8, 13824, 32000),
    "llama-30b": (60, 6656, 52, 8, 17920, 32000),
    "llama-70b": (80, 8192, 64, 8, 28672, 32000),
}
MODELS = {name: msgspec.convert(dict(zip(_FIELDS, shape, strict=True)), ModelConfig) for name, shape in _SHAPES.items()}


class Constants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model on one machine, forward and backward together; bandwidths in GB/s."""

    linear_us_per_token: float
    attention_ns_per_token2: float
    kv_bytes_per_token: float
    inside_node_gbps: float
    between_nodes_gbps: float
    task_ms: float


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine sustains with any model."""

    linear_tflops: float
    attention_tflops: float
    kv_element_bytes: Literal[2, 4]
    inside_node_gbps: float
    between_nodes_gbps: float
    task_ms: float


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A constants file: rates for any model's shape, and measured constants of known models.

    `peak_tflops`: what a device could do at most, by its maker; 0: unknown, so no utilisation is shown.
    """

    rates: Rates
    peak_tflops: float = 0.0
    models: dict[str, Constants] = {}
    memory_gib: float = 0.0  # of a device; 0: that of the machine, which is not judged
    host_gbps: float = 0.0  # between a device and its host, one way; 0: they share their memory
    note: str = ""


def load_constants(name_or_path: str, model: str = "llama-7b") -> Constants:
    """Returns the constants of a named model. Plain Constants in a file serve any model."""
    loaded = _load(name_or_path)
    if isinstance(loaded, Constants):
        return loaded
    if model in loaded.models:
        return loaded.models[model]
    shapes = {str(name): shape for name, shape in PRESETS.items()} | MODELS
    if model not in shapes:
        known = ", ".join(sorted({*shapes, *loaded.models}))
        raise Refused(
            "UnknownModel", f"model {model!r}: not known; use one of {known}, or a hardware file with constants"
        )
    return scaled(loaded.rates, shapes[model])


def constants_for(hardware: str, model: ModelConfig) -> Constants:
    """Returns the constants of a job's model, from its shape.

    A preset's name may mean another shape in a constants file.
    """
    loaded = _load(hardware)
    return loaded if isinstance(loaded, Constants) else scaled(loaded.rates, model)


def device_memory(hardware: str) -> int:
    """Returns the bytes of a device; 0: it has no memory of its own."""
    loaded = _load(hardware)
    return int(loaded.memory_gib * 2**30) if isinstance(loaded, Hardware) else 0


def host_bandwidth(hardware: str) -> float:
    """Returns the bytes a second between a device and its host, one way; 0: they share their memory."""
    loaded = _load(hardware)
    return loaded.host_gbps * 1e9 if isinstance(loaded, Hardware) else 0.0


def peak_tflops(hardware: str) -> float:
    """Peak of one device in TFLOP/s; 0: unknown."""
    loaded = _load(hardware)
    return loaded.peak_tflops if isinstance(loaded, Hardware) else 0.0


def scaled(rates: Rates, model: ModelConfig) -> Constants:
    """Turns FLOPs into times. Backward is 2 x forward in matrix products, 2.5 x in attention."""
    head = model.size_of_head
    query, kv = model.heads * head, model.kv_heads * head
    layer = model.hidden * (2 * query + 2 * kv) + 3 * model.hidden * model.feed_forward
    linear_flops = 3 * 2 * (model.layers * layer + model.hidden * model.vocabulary)
    attention_flops = 3.5 * 2 * query * model.layers
    return Constants(
        linear_us_per_token=linear_flops / rates.linear_tflops * 1e-6,
        attention_ns_per_token2=attention_flops / rates.attention_tflops * 1e-3,
        kv_bytes_per_token=3
        * model.layers
        * 2
        * kv
        * rates.kv_element_bytes,  # K and V forward, again backward, and their gradients
        inside_node_gbps=rates.inside_node_gbps,
        between_nodes_gbps=rates.between_nodes_gbps,
        task_ms=rates.task_ms,
    )


def _load(name_or_path: str) -> Hardware | Constants:
    raw = _read(name_or_path)
    kind: type[Hardware | Constants] = Hardware if b'"rates"' in raw else Constants
    try:
        loaded = msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise Refused(
            "BadHardware", f"hardware {name_or_path!r}: {error}; see the shipped files for the format"
        ) from None
    _check(name_or_path, loaded.rates if isinstance(loaded, Hardware) else loaded)
    if isinstance(loaded, Hardware) and not 0 <= loaded.peak_tflops < float("inf"):
        raise Refused(
            "BadHardware",
            f"hardware {name_or_path!r}: peak_tflops is {loaded.peak_tflops}; it must be finite and not below 0",
        )
    for constants in loaded.models.values() if isinstance(loaded, Hardware) else ():
        _check(name_or_path, constants)
    return loaded


def _read(name_or_path: str) -> bytes:
    if name_or_path in SHIPPED:
        return resources.files("coxswain.cost").joinpath("data", f"{name_or_path}.json").read_bytes()
    try:
        return Path(name_or_path).read_bytes()
    except OSError as error:
        shipped = ", ".join(SHIPPED)
        message = f"hardware {name_or_path!r}: {error.strerror}; use one of {shipped}, or the path of a constants file"
        raise Refused("BadHardware", message) from None


def _check(name: str, values: Constants | Rates) -> None:
    for field in values.__struct_fields__:
        value = getattr(values, field)
        if not 0 <= value < float("inf") or (value == 0 and field != "task_ms"):
            raise Refused("BadHardware", f"hardware {name!r}: {field} is {value}; it must be finite and above 0")
