"""`python -m coxswain_train.checkpoint.export CHECKPOINT_URI OUTPUT [STEP]`: a checkpoint's weights in Hugging Face's layout.

OUTPUT is a new folder, for `AutoModelForCausalLM.from_pretrained`, `AutoTokenizer.from_pretrained` and another job's
`model.initFrom`; or, ending in .safetensors, just the weights in one file. Without STEP the newest checkpoint is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from coxswain.boxes import Box, full_box, match
from coxswain.config import TokenizerConfig
from coxswain.errors import CoxswainError, Refused
from coxswain.exits import INTERRUPTED, Exit
from coxswain.planlog import manifest_key, manifest_steps
from coxswain.uris import file_uri
from coxswain.wire import CheckpointManifest, Shard
from coxswain_link.store import Store, open_store
from coxswain_train.checkpoint import save_load
from coxswain_train.checkpoint.huggingface import to_config
from coxswain_train.checkpoint.listings import with_boxes
from coxswain_train.checkpoint.pretrained import EMBEDDING, HEAD, ROUNDING
from coxswain_train.checkpoint.safetensors_out import DTYPES, OutputFile, Writer, divided, write_index, writing
from coxswain_train.checkpoint.tokenizer_out import write_tokenizer

_DIGITS = 19  # with fewer of them a number may be one of steps
_NAMED = 5  # steps of checkpoints in a message
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Options:
    """`dtype`: fp32 or bf16. `file_bytes`: of one file of weights, at most. `tokenizer`: a path instead of the job's, or none."""

    dtype: str = "fp32"
    file_bytes: float = 5e9
    tokenizer: str = ""


def export(store: Store, output: Path, step: int | None = None, options: Options | None = None) -> int:
    """Writes the weights of a step (by default the newest), whole or not at all; returns the step.

    Memory holds one shard of the checkpoint at a time, however large the model is.
    """
    step = _step_of(store, step)
    with _kept(store, step):
        _export(store, step, output, options or Options())
    return step


def _export(store: Store, step: int, output: Path, options: Options) -> None:
    manifest = save_load.read_manifest(store, manifest_key(step))
    manifest = replace(manifest, shards=tuple(with_boxes(store, manifest.shards)))
    if output.suffix == ".safetensors":
        _check_file(output)
        shapes = _shapes(store, manifest)
        with _partial(output) as partial:
            _write_weights(store, manifest, partial.parent, [OutputFile(partial.name, shapes)], options)
    else:
        _check_output(output, manifest)
        with _partial(output) as folder:
            folder.mkdir()
            _write_folder(store, manifest, folder, options)


@contextmanager
def _kept(store: Store, step: int) -> Iterator[None]:
    """A job that runs on drops checkpoints, also while one is read: nothing is wrong with those that it keeps."""
    try:
        yield
    except Refused as error:
        if error.reason != "TornCheckpoint" or store.exists(manifest_key(step)):
            raise
        raise Refused(
            "CheckpointDropped",
            f"{store.uri}: the job that runs on has dropped the checkpoint of step {step} meanwhile; export again, raise "
            "checkpoint.keepLast, or name the STEP of one that checkpoint.keepEvery keeps",
        ) from error


def _write_folder(store: Store, manifest: CheckpointManifest, folder: Path, options: Options) -> None:
    shapes = _shapes(store, manifest)
    files = divided(shapes, DTYPES[options.dtype], options.file_bytes)
    tokenizer = _tokenizer(manifest, options.tokenizer)
    eos = None if tokenizer is None else write_tokenizer(folder, tokenizer, manifest.longest)
    assert manifest.model is not None, "checked before"
    names = {"fp32": "float32", "bf16": "bfloat16"}
    config = to_config(manifest.model, shapes[EMBEDDING][0], manifest.longest, names[options.dtype])
    known = {
        "bos_token_id": None,
        "eos_token_id": eos,
    }  # else a reader takes the defaults of the family, other tokens here
    (folder / "config.json").write_text(json.dumps(config | known, indent=2) + "\n")
    _write_weights(store, manifest, folder, files, options)
    if len(files) > 1:
        write_index(folder, files, DTYPES[options.dtype])


def _write_weights(
    store: Store, manifest: CheckpointManifest, folder: Path, files: list[OutputFile], options: Options
) -> None:
    """Reads every shard once."""
    with writing(folder, files, DTYPES[options.dtype]) as writer:
        for shard in manifest.shards:
            _write_shard(store, shard, writer)


def _write_shard(store: Store, shard: Shard, writer: Writer) -> None:
    boxes = {str(i): box for i, box in _parameters(shard)}
    tensors = save_load.read_shard(store, shard) if boxes else {}
    for i, box in boxes.items():
        writer.put(box, tensors[i])


@contextmanager
def _partial(output: Path) -> Iterator[Path]:
    """A place beside the output, behind links, that takes its name once it is whole. What an export left that was killed
    there is removed."""
    output = Path(os.path.realpath(output))
    partial = output.with_name(f".{output.name}.partial")
    _remove(partial)
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        if output.is_dir():
            output.rmdir()  # empty: checked before
        partial.replace(output)
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _check_file(output: Path) -> None:
    if output.exists() and not output.is_file():
        raise Refused("OutputExists", f"OUTPUT {str(output)!r} exists and is no file; name another, or remove it")


def _check_output(output: Path, manifest: CheckpointManifest) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise Refused(
            "OutputExists", f"OUTPUT {str(output)!r} exists and is no empty folder; name another, or remove it"
        )
    if manifest.model is None or manifest.model.custom is not None:
        what = "does not say its model's shape" if manifest.model is None else "is of a model of your own"
        raise Refused(
            "NoModelInCheckpoint",
            f"the checkpoint of step {manifest.step} {what}, so there can be no config.json; give an OUTPUT that ends in "
            ".safetensors for the weights alone",
        )


def _tokenizer(manifest: CheckpointManifest, given: str) -> TokenizerConfig | None:
    """The one that was given, else the job's; None: an earlier release did not record it, or none is wanted."""
    if given == "none":
        return None
    known = manifest.tokenizer
    if given:
        uri = given if "://" in given else file_uri(Path(given).absolute())
        return TokenizerConfig(kind="file", uri=uri, eos=known.eos if known else "")
    return known


def _step_of(store: Store, wanted: int | None) -> int:
    """The step that is wanted, or the newest. Raises Refused where no checkpoint is of it."""
    there = manifest_steps(o.path for o in store.list("manifests/"))
    if not there:
        raise Refused(
            "NoCheckpoint", f"{store.uri} holds no checkpoint; give the checkpoint.uri of a job that saved one"
        )
    if wanted is not None and wanted not in there:
        raise Refused(
            "NoCheckpoint",
            f"{store.uri} holds no checkpoint of step {wanted}; give the STEP of one that it holds, the last of which are "
            f"{', '.join(map(str, there[-_NAMED:]))}, or nothing for the newest",
        )
    return there[-1] if wanted is None else wanted


def _shapes(store: Store, manifest: CheckpointManifest) -> Shapes:
    """Whole shapes, from the farthest corner of any box, without the rows that round the vocabulary up."""
    held = [box for shard in manifest.shards for _, box in _parameters(shard)]
    found: Shapes = {}
    for box in held:
        corner = tuple(o + n for o, n in zip(box.offset, box.shape, strict=True))
        found[box.name] = tuple(map(max, corner, found.get(box.name, corner)))
    _, missing = match(held, (full_box(name, shape) for name, shape in found.items()))
    if missing:
        raise Refused("TornCheckpoint", f"no shard holds all of {missing[0]} ({len(missing)} tensors are incomplete)")
    tables = [name for name in (EMBEDDING, HEAD) if name in found]
    rows = max((_filled_rows(store, manifest, table, found[table][0]) for table in tables), default=0)
    return found | {name: (rows, *found[name][1:]) for name in tables}


def _filled_rows(store: Store, manifest: CheckpointManifest, table: str, rows: int) -> int:
    """How many rows of the vocabulary a table needs. Those that imported weights lacked are zero in each table, and of no id."""
    if manifest.model is not None and not manifest.model.init_from:
        return rows
    least = max(1, rows - ROUNDING + 1, manifest.ids)
    filled = least
    for shard in manifest.shards:
        ends = [(i, box) for i, box in _parameters(shard) if box.name == table and box.offset[0] + box.shape[0] > least]
        tensors = save_load.read_shard(store, shard) if ends else {}
        for i, box in ends:
            found = (tensors[str(i)] != 0).any(1).nonzero()
            filled = max(filled, box.offset[0] + int(found[-1]) + 1 if len(found) else 0)
    return filled


def _parameters(shard: Shard) -> Iterable[tuple[int, Box]]:
    """The shard's boxes of parameters, with their numbers in it."""
    return ((i, box) for i, (kind, box) in enumerate(zip(shard.kinds, shard.boxes, strict=True)) if kind == "parameter")


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m coxswain_train.checkpoint.export",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT_URI", help="checkpoint.uri of the job")
    parser.add_argument("output", metavar="OUTPUT", type=Path, help="a new folder, or a file that ends in .safetensors")
    parser.add_argument("step", metavar="STEP", nargs="?", default="", help="number of a checkpoint's step; the newest")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="fp32", help="type of the weights (fp32)")
    parser.add_argument("--file-gb", type=float, default=5.0, help="largest file of weights, in 10^9 bytes (5)")
    parser.add_argument("--tokenizer", default="", help="a tokenizer.json instead of the job's; none: no tokenizer")
    return parser.parse_args(words)


def _step(word: str) -> int | None:
    if word and not (word.isdecimal() and len(word) < _DIGITS):
        raise Refused("BadStep", f"STEP {word[:_DIGITS]!r}: allowed is the number of a checkpoint's step, or nothing")
    return int(word) if word else None


def _file_bytes(gigabytes: float) -> float:
    if not gigabytes > 0:  # nor nan
        raise Refused("BadFileSize", f"--file-gb {gigabytes}: allowed is a number above 0; 5 is the default")
    return gigabytes * 1e9


def main(words: list[str]) -> int:
    given = _arguments(words)
    try:
        options = Options(given.dtype, _file_bytes(given.file_gb), given.tokenizer)
        step = export(open_store(given.checkpoint), given.output.absolute(), _step(given.step), options)
    except (CoxswainError, OSError) as error:
        sys.stderr.write(f"{getattr(error, 'reason', 'NotExported')}: {error}\n")
        return Exit.USER_FAULT
    except KeyboardInterrupt:
        sys.stderr.write("stopped: nothing was written\n")
        return INTERRUPTED
    sys.stdout.write(f"weights after {step} steps: {given.output}\n")
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
