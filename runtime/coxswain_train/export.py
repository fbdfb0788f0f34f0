"""`python -m coxswain_train.export CHECKPOINT_URI OUTPUT [STEP]`: a checkpoint's weights as one safetensors file.

Names and shapes are those of Hugging Face's Llama. Without STEP the newest checkpoint is taken.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import safetensors.torch
import torch

from coxswain.boxes import whole
from coxswain.errors import Refused
from coxswain.exits import Exit
from coxswain.planlog import manifest_key
from coxswain.wire import Shard
from coxswain_link.store import Store, open_store
from coxswain_train import checkpoint


def export(store: Store, output: Path, step: int | None = None) -> int:
    """Writes the weights of a step (by default the newest); returns the step."""
    key = _newest(store) if step is None else manifest_key(step)
    manifest = checkpoint.read_manifest(store, key)
    weights = {whole(name, shape): torch.zeros(shape) for name, shape in _shapes(manifest.shards).items()}
    checkpoint.load(store, manifest.shards, {"parameter": weights})
    named = {box.name: values for box, values in weights.items()}
    safetensors.torch.save_file(named, output, metadata={"format": "pt", "step": str(manifest.step)})
    return manifest.step


def _newest(store: Store) -> str:
    keys = [o.path for o in store.list("manifests/")]
    if not keys:
        raise Refused(
            "NoCheckpoint", f"{store.uri} holds no checkpoint; give the checkpoint.uri of a job that saved one"
        )
    return max(keys)


def _shapes(shards: Iterable[Shard]) -> dict[str, tuple[int, ...]]:
    """Whole shapes, from the farthest corner of any box."""
    found: dict[str, tuple[int, ...]] = {}
    for shard in shards:
        for kind, box in zip(shard.kinds, shard.boxes, strict=True):
            if kind == "parameter":
                corner = tuple(o + n for o, n in zip(box.offset, box.shape, strict=True))
                found[box.name] = tuple(map(max, corner, found.get(box.name, corner)))
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) not in (2, 3):
        sys.stderr.write(f"{__doc__}")
        return Exit.USER_FAULT
    try:
        step = export(open_store(arguments[0]), Path(arguments[1]), int(arguments[2]) if arguments[2:] else None)
    except Refused as error:
        sys.stderr.write(f"{error.reason}: {error.message}\n")
        return Exit.USER_FAULT
    sys.stdout.write(f"weights after {step} steps: {arguments[1]}\n")
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
