"""The loader: indexes its shares of sources and serves slices of samples over Arrow Flight.

Runs as `python -m coxswain_data.loader`. It keeps no state that a restart would have to replay.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import NoReturn

from msgspec.structs import replace

from coxswain import names
from coxswain.digests import tokens_digest
from coxswain.errors import CoxswainError, Refused, Stale, crashed
from coxswain.index import BlockEntry, IndexedShare
from coxswain.planlog import LoaderShare
from coxswain.wire import Fault, Indexed, Register, Registered, Shares, SourceBlocks, World
from coxswain_data.block_map import all_blocks
from coxswain_data.index_record import StoredIndexes
from coxswain_data.indexer import index_share, messages
from coxswain_data.open_sources import OpenSources
from coxswain_data.samples import Samples
from coxswain_link.environment import Environment, allow_open_files, end_as, leave, run_service
from coxswain_link.flight import Request, SlicePart, SliceRequest, SliceServer
from coxswain_link.http_client import Client, JobEnded
from coxswain_link.metrics import MetricsRegistry, build
from coxswain_link.status import serve_status
from coxswain_link.store import Denied, StoreUnavailable, open_store

log = logging.getLogger(__name__)

_POLL = 5.0  # seconds of one long poll: bounds the delay of registering with a new coordinator
_COORDINATOR_AWAY = 120.0  # seconds until a loader exits, which restarts it


class Loader:
    """A loader without its sockets."""

    def __init__(self, env: Environment, coordinator: Client, metrics: MetricsRegistry) -> None:
        job = env.job
        self._name, self._coordinator, self._metrics = env.name, coordinator, metrics
        checkpoint, known = job.checkpoint, True  # the coordinator has opened it before
        self._store = open_store(checkpoint.uri, checkpoint.endpoint, env.secrets_dir, create=True, known=known)
        self._open_sources = OpenSources(job.mix, env.secrets_dir, self._blocks, index=self._store)
        self._samples = Samples(self._open_sources, self._store, self._count_sample)
        self._indexed: dict[LoaderShare, IndexedShare] = {}
        self._given_up: CoxswainError | None = None  # what a store stayed while calls were repeated, or a bug
        self.generation = 0
        self.ready = False

    def follow(self, me: Register) -> NoReturn:
        """Registers, indexes its shares and follows the world until the job ends (raises JobEnded).

        Raises Refused for a bad source or keys that stay refused, StoreUnavailable when a store stays
        unavailable, and Retryable after an error that nothing expects: the operator counts restarts and ends the job.
        """
        while self._given_up is None:
            error = self._open_sources.last_error or self._store.last_error
            registered = self._coordinator.post("/v1/register", replace(me, last_error=error), Registered)
            has_world = registered is not None and registered.generation > 0
            self.ready = has_world or self._announce_shares()  # a coordinator without a world needs the index
            world = self._coordinator.get("/v1/world", World, after=self.generation, wait=_POLL, instance=me.instance)
            if world is not None:
                self.generation = max(self.generation, world.generation)
        raise self._given_up

    def serve(self, request: Request) -> Iterator[SlicePart]:
        """The parts of a request in its order. Raises Stale for a generation that is over."""
        if request.generation < self.generation:
            raise Stale(f"generation {request.generation} is over; the current one is {self.generation}")
        self.generation = request.generation  # a caller may know a newer world first
        began = time.monotonic()
        try:
            for item, wanted in enumerate(request.slices):
                yield self._part(item, wanted)
        except (StoreUnavailable, Denied) as error:  # its caller may have given up before
            self._given_up = error
            raise
        except CoxswainError:
            raise
        except Exception as error:  # its caller repeats the request for ever, and a restart is counted
            self._given_up = crashed("the loader", error)
            raise
        self._metrics["coxswain_loader_request_seconds"].observe(time.monotonic() - began)
        self._metrics["coxswain_loader_cache_bytes"].set(self._samples.cached_bytes)
        self._metrics["coxswain_loader_open_objects"].set(self._open_sources.open_objects)

    def _part(self, item: int, wanted: SliceRequest) -> SlicePart:
        sequence = wanted.sequence
        tokens = self._samples.tokens(sequence.source, sequence.index)
        if len(tokens) != sequence.length:
            raise Refused(
                "PlanBroken",
                f"the plan counts {sequence.length} tokens in sample {sequence.index} of source {sequence.source!r}, "
                f"the index {len(tokens)}; the index was replaced under a running job: start a new run",
            )
        part = tokens[sequence.start + wanted.start : sequence.start + wanted.stop]
        self._metrics["coxswain_loader_tokens_served_total"].labels(sequence.source).inc(len(part))
        return SlicePart(item, part, None if wanted.start else tokens_digest(tokens[sequence.start : sequence.stop]))

    def _announce_shares(self) -> bool:
        """Indexes and sends the assigned shares; False while none are assigned."""
        owned = self._coordinator.get("/v1/shares", Shares, loader=self._name, wait=_POLL)
        stored = StoredIndexes(self._store)
        for share in owned.shares if owned else ():
            self._announce(share, stored)
        return owned is not None

    def _announce(self, share: LoaderShare, stored: StoredIndexes) -> None:
        """Sends the index of a share, unless the coordinator has the source's whole index."""
        if self._coordinator.get("/v1/blocks", SourceBlocks, source=share.source, wait=0) is not None:
            return
        if share not in self._indexed:
            self._indexed[share] = self._index(share, stored)
        for part in messages(self._indexed[share]):
            self._coordinator.post("/v1/indexed", part)

    def _index(self, share: LoaderShare, stored: StoredIndexes) -> IndexedShare:
        began = time.monotonic()
        try:
            source, tokenizer = self._open_sources.source(share.source), self._open_sources.tokenizer(share.source)
            indexed = index_share(source, tokenizer, self._store, share, stored)
        except Refused as error:
            self._coordinator.post("/v1/indexed", Indexed(share, (), fault=Fault(error.reason, error.message)))
            raise
        samples = sum(b.samples for b in indexed.blocks)
        log.info("indexed %d samples of %s in %.1f s", samples, share.source, time.monotonic() - began)
        return indexed

    def _blocks(self, source: str) -> Sequence[BlockEntry]:
        return all_blocks(self._coordinator, source, _POLL)

    def _count_sample(self, source: str) -> None:
        self._metrics["coxswain_loader_samples_total"].labels(source).inc()


def main(env: Environment) -> int:
    """Serves until the job ends; returns the exit code that the coordinator names."""
    os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")  # before the first tokenizer is used
    allow_open_files()  # each block in use is one
    metrics = build("loader")
    with Client(env.coordinator_url, env.token, _COORDINATOR_AWAY) as coordinator:
        loader = Loader(env, coordinator, metrics)
        server = SliceServer(env.pod_ip, names.PORT_LOADER, env.token, loader.serve)
        threading.Thread(target=server.serve, name="flight", daemon=True).start()
        status = serve_status(env.pod_ip, names.PORT_LOADER_HTTP, metrics, lambda: loader.ready)
        try:
            loader.follow(_myself(env, server.port))
        except JobEnded as end:
            return end_as(end.finished, env)
        finally:
            status.close()
            server.close()


def _myself(env: Environment, port: int) -> Register:
    return Register("loader", env.name, env.pod_name, uuid.uuid4().hex, env.pod_ip, port, config=env.config)


if __name__ == "__main__":
    leave(run_service(main))
