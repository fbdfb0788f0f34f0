"""The numbers of the cost model: from shipped files, a user's file, or a model's shape."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec

from coxswain.config import ModelConfig
from coxswain.cost.hardware import Constants, Hardware, Point, Rates, faults, scaled
from coxswain.errors import Refused
from coxswain.presets import PRESETS
from coxswain.structs import UNDECODABLE

__all__ = ["Constants", "Hardware", "Rates", "scaled"]

LEAST, MOST = 1e-12, 1e12  # of a number of a file: beyond, seconds of a step have no numbers
SHIPPED = ("a100-40g", "a100-80g", "cpu", "h100-80g", "h200-141g")
# ByteScale's models all have 8 key-value heads, unlike the presets of the same names.
_FIELDS = ("layers", "hidden", "heads", "kv_heads", "feed_forward", "vocabulary")
_SHAPES = {
    "llama-7b": (32, 4096, 32, 8, 11008, 32000),
    "llama-13b": (40, 5120, 40, 8, 13824, 32000),
    "llama-30b": (60, 6656, 52, 8, 17920, 32000),
    "llama-70b": (80, 8192, 64, 8, 28672, 32000),
}
MODELS = {name: msgspec.convert(dict(zip(_FIELDS, shape, strict=True)), ModelConfig) for name, shape in _SHAPES.items()}


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


def constants_for(hardware: str | Hardware, model: ModelConfig) -> Constants:
    """Returns the constants of a job's model, from its shape. `hardware`: a name, a path, or a file's content.

    A preset's name may mean another shape in a constants file.
    """
    loaded = _load(hardware) if isinstance(hardware, str) else hardware
    return loaded if isinstance(loaded, Constants) else scaled(loaded.rates, model)


def load_hardware(name_or_path: str) -> Hardware:
    """Returns a whole hardware file."""
    return read_hardware(_read(name_or_path), name_or_path)


def read_hardware(raw: bytes, name_or_path: str) -> Hardware:
    """The hardware in these bytes; Refused by its name if they hold none."""
    loaded = _decoded(raw, name_or_path)
    if isinstance(loaded, Constants):
        raise Refused(
            "BadHardware", f"hardware {name_or_path!r}: constants of one model; a file with rates is needed here"
        )
    return loaded


def peak_tflops(hardware: str) -> float:
    """Peak of one device in TFLOP/s; 0: unknown."""
    loaded = _load(hardware)
    return loaded.peak_tflops if isinstance(loaded, Hardware) else 0.0


def device_memory(hardware: str) -> int:
    """Returns the bytes of a device; 0: it has no memory of its own."""
    loaded = _load(hardware)
    return int(loaded.memory_gib * 2**30) if isinstance(loaded, Hardware) else 0


def _load(name_or_path: str) -> Hardware | Constants:
    return _decoded(_read(name_or_path), name_or_path)


def _decoded(raw: bytes, name_or_path: str) -> Hardware | Constants:
    kind: type[Hardware | Constants] = Hardware if b'"rates"' in raw else Constants
    try:
        loaded = msgspec.json.decode(raw, type=kind)
    except UNDECODABLE as error:
        raise Refused(
            "BadHardware", f"hardware {name_or_path!r}: {error}; see the shipped files for the format"
        ) from None
    _check(name_or_path, loaded.rates if isinstance(loaded, Hardware) else loaded)
    if isinstance(loaded, Hardware):
        for field in ("peak_tflops", "memory_gib", "host_gbps"):
            if not 0 <= (value := getattr(loaded, field)) <= MOST:
                message = f"hardware {name_or_path!r}: {field} is {value}; it must be at least 0 and at most {MOST:g}"
                raise Refused("BadHardware", message)
        for constants in loaded.models.values():
            _check(name_or_path, constants)
    return loaded


def _read(name_or_path: str) -> bytes:
    if name_or_path in SHIPPED:
        return resources.files("coxswain.cost").joinpath("data", f"{name_or_path}.json").read_bytes()
    try:
        return Path(name_or_path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        shipped, why = ", ".join(SHIPPED), error.strerror if isinstance(error, OSError) else error
        message = f"hardware {name_or_path!r}: {why}; use one of {shipped}, or the path of a constants file"
        raise Refused("BadHardware", message) from None


_MAY_BE_ZERO = ("task_ms", "update_ns_per_parameter")


def _check(name: str, values: Constants | Rates) -> None:
    fields = {field: getattr(values, field) for field in values.__struct_fields__}
    for field, value in fields.items():
        if not isinstance(value, int | float):
            continue
        if not LEAST <= value <= MOST and not (value == 0 and field in _MAY_BE_ZERO):
            form = f"it must be at least {LEAST:g} and at most {MOST:g}"
            raise Refused("BadHardware", f"hardware {name!r}: {field} is {value}; {form}")
    for field, points in _tables(values).items():
        if wrong := faults(_times(points) if isinstance(values, Rates) else points) or _beyond(points):
            raise Refused("BadHardware", f"hardware {name!r}: {field}: {wrong}")


def _tables(values: Constants | Rates) -> dict[str, tuple[Point, ...]]:
    """As the file has them: milliseconds of one model, or TFLOP/s, by tokens."""
    if isinstance(values, Constants):
        return {"tables.attention": values.tables.attention, "tables.ring": values.tables.ring}
    return {"attention_table": values.attention_table, "ring_table": values.ring_table}


def _times(rates: tuple[Point, ...]) -> tuple[Point, ...]:
    """Per FLOP of a token squared: any model's milliseconds rise as they do."""
    return tuple((n, n * n / rate if rate > 0 else rate) for n, rate in rates)


def _beyond(points: tuple[Point, ...]) -> str:
    """Says which number is beyond all bounds; empty: none."""
    found = next((value for _, value in points if not LEAST <= value <= MOST), None)
    return "" if found is None else f"it has {found}; numbers must be at least {LEAST:g} and at most {MOST:g}"
