"""One rank of one system, in the environment of that system: `python -m bench.loading.rank SYSTEM CORPUS FOLDER ...`.

Prints a JSON object a line: `first` when it has its first batch, with the seconds since its start; `warm` when it has one of
each of its workers and one more, `done` when it has read `--batches` more, each with the tokens so far. Behind those two it waits
for a line, so that its processes can be measured. With `--digests` it also prints, for each batch, the digests of its documents,
and its own state behind it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.loading.corpus import Corpus
from bench.loading.task import Task


def main() -> None:
    began, options = time.monotonic(), _options()
    module = importlib.import_module(f"bench.loading.readers.{options.system}")
    corpus, folder = Corpus(Path(options.corpus)), Path(options.folder)
    if options.prepare:
        module.prepare(corpus, folder)
        return
    _join(options.rank, options.world)
    state = json.loads(Path(options.state).read_text()) if options.state else None
    task = Task(corpus, folder, options.rank, options.world, options.workers, options.documents, options.tokens, state)
    read(module.Reader(task), options.workers, options.batches, options.digests, began)


def read(reader: Any, workers: int, batches: int, digests: bool, began: float) -> None:
    tokens = 0
    for number, batch in enumerate(reader):
        tokens += sum(map(len, batch))
        if digests:
            _say(event="batch", digests=[digest(ids) for ids in batch], state=reader.state())
        if number == 0:
            _say(event="first", seconds=time.monotonic() - began)
        if number == workers:
            _stop("warm", tokens)
        if number == workers + batches:
            _stop("done", tokens)  # its workers still run
            return


def _stop(event: str, tokens: int) -> None:
    _say(event=event, tokens=tokens)
    sys.stdin.readline()


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def digest(ids: Any) -> str:
    """Of the ids of a document, whatever their type."""
    return hashlib.sha256(np.asarray(ids, dtype=np.int64).tobytes()).hexdigest()[:16]


def _join(rank: int, world: int) -> None:
    """As torchrun starts ranks: peers look for their place in the environment, or in torch's group."""
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
    }  # fmt: skip
    if world > 1:
        import torch

        torch.distributed.init_process_group("gloo", rank=rank, world_size=world)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system")
    parser.add_argument("corpus")
    parser.add_argument("folder")
    parser.add_argument("--prepare", action="store_true", help="write the system's own form of the corpus, and end")
    for name, default in (
        ("rank", 0),
        ("world", 1),
        ("workers", 1),
        ("documents", 8),
        ("tokens", 4096),
        ("batches", 100),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--digests", action="store_true")
    parser.add_argument("--state", default="", help="file with the state to go on behind")
    return parser.parse_args()


if __name__ == "__main__":
    main()
