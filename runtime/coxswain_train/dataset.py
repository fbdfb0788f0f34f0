"""The stream of a job in one process, as a torch `IterableDataset`: no services, no cluster, the same digests.

    dataset = StreamDataset.of_files(["job.yaml"], cache="file:///tmp/index")
    for step in dataset:
        ...  # step.tokens, step.labels; step.state resumes after it

An item is one rank's part of a step, so a loop trains on the batches that the job would train on.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from coxswain import digests
from coxswain.api.jobfiles import load_config
from coxswain.config import BatchConfig, EndpointConfig, MixConfig, stream_hash
from coxswain.errors import Refused
from coxswain.index import fingerprint
from coxswain.membership import permutation
from coxswain.membership.held_out import hold_out
from coxswain.membership.mix_record import differences, record_of
from coxswain.membership.stream import Stream, initial_cursor
from coxswain.membership.values import Cursor, Membership, MixRecord
from coxswain_data.local import LocalData
from coxswain_link.store import Store, open_store
from coxswain_train.model.loss import IGNORED
from coxswain_train.step_batch import StepBatch

STATE_VERSION = 1


def stream_digest(previous: str, parts: Sequence[StepBatch]) -> str:
    """The stream digest after a step, from all ranks' parts of it; `digests.STREAM_SEED` before step 0."""
    by_index = {index: digest for part in parts for index, digest in zip(part.mine, part.digests, strict=True)}
    whole = parts[0].membership
    return digests.chain(previous, parts[0].step, whole, [by_index[index] for index in range(len(whole))])


@dataclass(frozen=True, slots=True)
class _Turn:
    """Which of the next steps a worker of a DataLoader makes: the one behind `others`, then every `workers`-th."""

    workers: int
    others: int

    @property
    def is_mine(self) -> bool:
        return not self.others

    def next(self) -> _Turn:
        return _Turn(self.workers, (self.others or self.workers) - 1)


class StreamDataset(IterableDataset[StepBatch]):
    """The steps of a mix, for one of `world` ranks.

    `cache` is the uri where block indexes are kept (a job's checkpoint.uri has them already), `endpoint` its S3 server; `steps`
    0 means until the data ends; `held_out` tokens are left to a job's evaluation (evaluation.tokens). With
    `loader(num_workers=n)`, a DataLoader, each worker makes every n-th step, in order.
    Raises Refused as loaders do.
    """

    def __init__(
        self, mix: MixConfig, batch: BatchConfig, cache: str, *, steps: int = 0, rank: int = 0, world: int = 1,
        secrets_dir: Path | None = None, held_out: int = 0, endpoint: EndpointConfig | None = None,
    ) -> None:  # fmt: skip
        if not 0 <= rank < world:
            raise Refused("BadRank", f"rank is {rank}; with world {world} it must be 0 to {world - 1}")
        self.mix, self.batch, self.steps, self.rank, self.world = mix, batch, steps, rank, world
        self._cache, self._endpoint, self._secrets_dir, self._held_out = cache, endpoint, secrets_dir, held_out
        self._cursor, self._record = initial_cursor(mix), record_of(mix, 0)
        self._turn: _Turn | None = None
        self._begin: tuple[Cursor, _Turn | None] = self._cursor, None  # of each walk of a worker of a loader
        data = LocalData(mix, self._index_store(), secrets_dir)
        self.vocabulary = data.vocabulary()
        self._blocks = {s.name: data.blocks(s.name) for s in mix.sources}
        self._identity = {
            "version": STATE_VERSION,
            "stream": f"v{permutation.VERSION}:{stream_hash(mix, batch, held_out)}",
            "index": {name: fingerprint(blocks) for name, blocks in self._blocks.items()},
        }
        self._open(data)

    @classmethod
    def of_files(cls, files: Sequence[str | Path], cache: str, **options: Any) -> StreamDataset:
        """Of the one TrainingJob in these YAML files, for as many steps as it has.

        Where `cache` is its checkpoint.uri, at its checkpoint.endpoint: with the Secret of that in `secrets_dir`, if given, or
        with this user's credentials.
        """
        job = load_config([Path(f) for f in files])
        endpoint = None
        if cache.rstrip("/") == job.checkpoint.uri.rstrip("/"):
            theirs = job.checkpoint.endpoint
            endpoint = theirs if options.get("secrets_dir") else msgspec.structs.replace(theirs, secret="")
        own = {"steps": job.total_steps, "held_out": job.evaluation.tokens, "endpoint": endpoint}
        return cls(job.mix, job.batch, cache, **(own | options))

    def loader(self, num_workers: int = 0, **options: Any) -> DataLoader[StepBatch]:
        """A DataLoader of these steps; `options` are those of torch's, such as `pin_memory`.

        Its workers are forked by Python's fork server, which imports torch once for all of them.
        """
        if num_workers:
            options = {"multiprocessing_context": _forked_by_a_server(), **options}
        return DataLoader(self, batch_size=None, num_workers=num_workers, **options)

    def __iter__(self) -> Iterator[StepBatch]:
        """Yields the steps from the dataset's cursor on.

        In a worker of a DataLoader, from where it was when the worker started, or loaded a state: how far the worker has read
        ahead says nothing of what its loader has given, which may keep its workers for another walk (`persistent_workers`).
        """
        data, stream = self._opened()
        worker = get_worker_info()
        if worker:
            self._cursor, self._turn = self._begin
        workers = worker.num_workers if worker else 1
        turn = self._turn or _Turn(workers, worker.id if worker else 0)
        if turn.workers != workers:
            raise _other_workers(turn.workers, workers)
        for membership, after in self._memberships(stream.under(self._record)):
            step = self._step(data, membership, after) if turn.is_mine else None
            turn = turn.next()
            self._cursor, self._turn = after, turn if workers > 1 else None  # behind the step only once it is read
            if step is not None:
                yield step

    def state_dict(self) -> dict[str, Any]:
        """The cursor, and the stream's identity; in one of several workers of a DataLoader also its turn.

        The workers have their own copies, whose states only a loader that keeps all of them can use (torchdata's
        StatefulDataLoader, with as many workers as before). Otherwise use `step.state` there.
        """
        return self._state(self._cursor) | ({} if self._turn is None else {"turn": msgspec.to_builtins(self._turn)})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues after the step of that state, with any rank and world, and under this mix, as a job whose mix is edited.

        Raises Refused when it is of another stream.
        """
        for part, mine in self._identity.items():
            if state.get(part) != mine:
                raise Refused(
                    "ForeignCheckpoint",
                    f"the state's {part} is {state.get(part)}, this dataset's {mine}: sources, tokenizer, seed, batch, "
                    "evaluation.tokens and longSequences must be those that the state was taken with",
                )
        self._cursor = msgspec.convert(state["cursor"], Cursor)
        self._record = self._record_after(state)
        self._turn = msgspec.convert(state["turn"], _Turn) if "turn" in state else None
        self._begin = self._cursor, self._turn

    def _record_after(self, state: dict[str, Any]) -> MixRecord:
        """An edit of weights, passes or phases makes a record of its own. A state without a record counts as not edited."""
        before = msgspec.convert(state["mix"], MixRecord) if "mix" in state else record_of(self.mix, self._cursor.mix)
        edited = bool(differences(before, record_of(self.mix, before.number)))
        return record_of(self.mix, before.number + edited)

    def _state(self, cursor: Cursor) -> dict[str, Any]:
        return {**self._identity, "cursor": msgspec.to_builtins(cursor), "mix": msgspec.to_builtins(self._record)}

    def _memberships(self, stream: Stream) -> Iterator[tuple[Membership, Cursor]]:
        """The steps that a job runs, from the cursor on, each with the cursor after it."""
        cursor = self._cursor
        while not self.steps or cursor.step < self.steps:
            membership, cursor = stream.advance(cursor)
            if membership.labels or not membership.exhausted:
                yield membership, cursor
            if membership.exhausted:
                return

    def _step(self, data: LocalData, membership: Membership, after: Cursor) -> StepBatch:
        mine = share([s.tokens for s in membership.sequences], self.rank, self.world)
        pieces = [membership.sequences[index] for index in mine]
        found = [data.with_next(piece) for piece in pieces]
        tokens = [ids[: piece.tokens] for ids, piece in zip(found, pieces, strict=True)]
        labels = [
            np.append(ids[1:], [IGNORED] * (piece.tokens - len(ids) + 1))
            for ids, piece in zip(found, pieces, strict=True)
        ]
        positions = [np.arange(piece.tokens) for piece in pieces]
        return StepBatch(
            membership.step, membership.sequences, tuple(mine), _joined(tokens), _joined(labels), _joined(positions),
            torch.tensor(np.cumsum([0, *(p.tokens for p in pieces)])), tuple(map(digests.tokens_digest, tokens)),
            self._state(after),
        )  # fmt: skip

    def _index_store(self) -> Store:
        return open_store(self._cache, self._endpoint, self._secrets_dir, create=True)

    def _open(self, data: LocalData) -> None:
        self._data, self._process = data, os.getpid()
        views = data.views()
        held_out = hold_out(self.mix, self.batch, views, self._held_out)
        self._stream = Stream(self.mix, self.batch, views, held_out=held_out)

    def _opened(self) -> tuple[LocalData, Stream]:
        """This process's readers. Their threads do not survive a fork, and a wait for them would never end."""
        if self._process and self._process != os.getpid():
            raise Refused(
                "ForkedDataset",
                "multiprocessing_context: this process was forked; with num_workers > 0 take dataset.loader(num_workers=…), "
                'or give the DataLoader multiprocessing_context="spawn" (or "forkserver")',
            )
        if not self._process:
            self._open(LocalData(self.mix, self._index_store(), self._secrets_dir, self._blocks))
        return self._data, self._stream

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which opens its own readers."""
        begin = self._cursor, self._turn
        return {**self.__dict__, "_data": None, "_stream": None, "_process": 0, "_begin": begin}


def _forked_by_a_server() -> BaseContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # without an effect where the server runs already
    return context


def _other_workers(before: int, now: int) -> Refused:
    return Refused(
        "WorkerState",
        f"num_workers is {now}: the state is that of one of {before} workers; give num_workers={before}, or load the "
        "`step.state` of the last step, which fits any number",
    )


def share(lengths: Sequence[int], rank: int, world: int) -> list[int]:
    """Which sequences a rank gets, in order: the longest first, each to the rank with the fewest tokens so far."""
    loads = [(0, other) for other in range(world)]  # a heap: its first has the fewest tokens
    mine = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        tokens, least = loads[0]
        heapreplace(loads, (tokens + lengths[index], least))
        if least == rank:
            mine.append(index)
    return sorted(mine)


def _joined(parts: Sequence[np.ndarray[Any, Any]]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64, copy=False))
