"""Safetensors files that are written piece by piece: tables first, then values wherever they belong, as they come."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from coxswain.boxes import Box, full_box, intersect, window

INDEX = "model.safetensors.index.json"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_CODES = {torch.float32: "F32", torch.bfloat16: "BF16"}


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file: the tensors in it, in order."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]


def divided(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, file_bytes: float) -> list[OutputFile]:
    """Cuts the tensors into files of at most `file_bytes` each (a larger tensor has one of its own), named as Hugging Face's."""
    groups: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, shape in shapes.items():
        own = prod(shape) * dtype.itemsize
        if groups[-1] and size + own > file_bytes:
            groups.append({})
            size = 0
        groups[-1][name] = shape
        size += own
    if len(groups) == 1:
        return [OutputFile("model.safetensors", groups[0])]
    return [OutputFile(f"model-{i:05d}-of-{len(groups):05d}.safetensors", g) for i, g in enumerate(groups, 1)]


def write_index(folder: Path, files: list[OutputFile], dtype: torch.dtype) -> None:
    """The index that Hugging Face's readers need of several files."""
    total = sum(prod(shape) * dtype.itemsize for file in files for shape in file.shapes.values())
    index = {"metadata": {"total_size": total}, "weight_map": {name: f.name for f in files for name in f.shapes}}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


class Writer:
    """Tensors of files that are mapped into memory: the kernel writes pages out as it needs room."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def put(self, box: Box, values: Tensor) -> None:
        """Writes a box of a tensor in the files' type, without what lies beyond the tensor's shape."""
        target = self._tensors[box.name]
        whole = full_box(box.name, tuple(target.shape))
        if (part := intersect(whole, box)) is not None:
            target[window(whole, part)].copy_(values[window(box, part)])


@contextmanager
def writing(folder: Path, files: list[OutputFile], dtype: torch.dtype) -> Iterator[Writer]:
    """The files, whole in size and without values yet; on disk when the block ends."""
    tensors: dict[str, Tensor] = {}
    maps = [_mapped(folder / file.name, file, dtype, tensors) for file in files]
    yield Writer(tensors)
    for mapped in maps:
        mapped.flush()


def _reserve(descriptor: int, path: Path, size: int) -> None:
    """Takes the room on disk: where there is none, a write into mapped memory would end the process by SIGBUS."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error


def _mapped(path: Path, file: OutputFile, dtype: torch.dtype, tensors: dict[str, Tensor]) -> mmap.mmap:
    table: dict[str, object] = {
        "__metadata__": {"format": "pt"}
    }  # one entry: a checkpoint must always give the same bytes
    end, starts = 0, {}
    for name, shape in file.shapes.items():
        starts[name], end = end, end + prod(shape) * dtype.itemsize
        table[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [starts[name], end]}
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    begin = 8 + len(header)
    with path.open("w+b") as out:
        _reserve(out.fileno(), path, begin + end)
        out.write(len(header).to_bytes(8, "little") + header)
        out.flush()
        mapped = mmap.mmap(out.fileno(), begin + end)
    for name, shape in file.shapes.items():
        flat = torch.frombuffer(mapped, dtype=dtype, count=prod(shape), offset=begin + starts[name])
        tensors[name] = flat.view(shape)
    return mapped
