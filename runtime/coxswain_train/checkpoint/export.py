"""`python -m coxswain_train.checkpoint.export CHECKPOINT_URI OUTPUT [STEP]`: a checkpoint's weights in Hugging Face's layout.

OUTPUT is a folder, for `from_pretrained` and for another job's `model.initFrom`; or, ending in .safetensors, just the weights.
Without STEP the newest checkpoint is taken. The names are those of Hugging Face's Llama.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from coxswain.boxes import full_box
from coxswain.errors import CoxswainError, Refused
from coxswain.exits import Exit
from coxswain.planlog import manifest_key
from coxswain.wire import CheckpointManifest, Shard
from coxswain_link.store import Store, open_store
from coxswain_train.checkpoint import save_load
from coxswain_train.checkpoint.huggingface import to_config
from coxswain_train.checkpoint.pretrained import HEAD

_EMBEDDING = "model.embed_tokens.weight"


def export(store: Store, output: Path, step: int | None = None) -> int:
    """Writes the weights of a step (by default the newest), whole or not at all; returns the step."""
    key = _newest(store) if step is None else manifest_key(step)
    manifest = save_load.read_manifest(store, key)
    if output.suffix == ".safetensors":
        _write_weights(output, _weights(store, manifest))
        return manifest.step
    config, weights = _config(manifest), _weights(store, manifest)
    config["vocab_size"] = len(weights[_EMBEDDING])
    output.mkdir(parents=True, exist_ok=True)
    _write_weights(output / "model.safetensors", weights)
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return manifest.step


def _weights(store: Store, manifest: CheckpointManifest) -> dict[str, Tensor]:
    weights = {full_box(name, shape): torch.zeros(shape) for name, shape in _shapes(manifest.shards).items()}
    save_load.load(store, manifest.shards, {"parameter": weights})
    return _without_empty_rows({box.name: values for box, values in weights.items()})


def _without_empty_rows(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leaves out the rows at the vocabulary's end that imported weights lacked: they are zero, and no id is theirs."""
    tables = [name for name in (_EMBEDDING, HEAD) if name in weights]
    filled = (weights[tables[-1]] != 0).any(1).nonzero()
    rows = int(filled[-1]) + 1 if len(filled) else None
    return weights | {name: weights[name][:rows].contiguous() for name in tables}


def _write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Writes one entry of metadata: several come in any order, and a checkpoint must always give the same bytes."""
    partial = path.with_name(f".{path.name}.partial")
    safetensors.torch.save_file(weights, partial, metadata={"format": "pt"})
    partial.replace(path)


def _config(manifest: CheckpointManifest) -> dict[str, object]:
    if manifest.model is None:
        raise Refused(
            "NoModelInCheckpoint",
            f"the checkpoint of step {manifest.step} does not say its model's shape, so there can be no config.json; give an "
            "OUTPUT that ends in .safetensors for the weights alone",
        )
    return to_config(manifest.model, manifest.vocabulary, manifest.longest)


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


def _step(arguments: list[str]) -> int | None:
    if arguments and not arguments[0].isdigit():
        raise Refused("BadStep", f"STEP {arguments[0]!r}: allowed is the number of a checkpoint's step, or nothing")
    return int(arguments[0]) if arguments else None


def main(arguments: list[str]) -> int:
    if len(arguments) not in (2, 3):
        sys.stderr.write(f"{__doc__}")
        return Exit.USER_FAULT
    try:
        step = export(open_store(arguments[0]), Path(arguments[1]), _step(arguments[2:]))
    except (CoxswainError, OSError) as error:
        sys.stderr.write(f"{getattr(error, 'reason', 'NotExported')}: {error}\n")
        return Exit.USER_FAULT
    sys.stdout.write(f"weights after {step} steps: {arguments[1]}\n")
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
