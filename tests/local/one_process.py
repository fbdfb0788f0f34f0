"""The stream of a job as one process reads it, without services: both digests of every step."""

from __future__ import annotations

from pathlib import Path

from coxswain import digests
from coxswain_train.dataset import StreamDataset, stream_digest
from tests.local.jobs import Object, write_objects


def stream_of(objects: list[Object], folder: Path, world: int = 1) -> list[tuple[str, str]]:
    """As `Run.digests()` of the whole job, by so many ranks. Job file and block index lie in the folder."""
    file = write_objects(folder / "job-for-one-process.yaml", objects)
    ranks = [StreamDataset.of_files([file], folder.as_uri(), rank=rank, world=world) for rank in range(world)]
    digest, found = digests.STREAM_SEED, []
    for parts in zip(*ranks, strict=True):
        digest = stream_digest(digest, parts)
        found.append((digest, f"{sum(p.delivered_digest for p in parts) % 2**64:016x}"))
    return found
