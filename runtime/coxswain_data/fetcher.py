"""Fetches slices from the loaders that own them, across restarts of loaders."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

import numpy as np
import tenacity

from coxswain.errors import Retryable, Stale
from coxswain.wire import LoaderAddress, LoaderAddresses, World
from coxswain_data.block_map import BlockMap, BlockMaps, Owners
from coxswain_data.fetched import Tokens
from coxswain_link.flight import Request, SliceClient, SliceRequest
from coxswain_link.http_client import Client
from coxswain_link.metrics import MetricsRegistry

log = logging.getLogger(__name__)

_CALL = 60.0  # seconds for one request of slices: a cold loader may have to read and tokenise a lot
_POLL = 10.0
_LOADERS_AT_ONCE = 4
_SAID_SECONDS = 60.0  # between two lines of the log about a loader that is away: it is asked for several times a second

T = TypeVar("T")


class Fetcher:
    """Asks each loader of a world for its part of a step. Follows a loader's new address."""

    def __init__(
        self, world: World, coordinator: Client, token: str, metrics: MetricsRegistry, blocks: BlockMaps | None = None
    ) -> None:
        """`blocks`: what earlier worlds have fetched."""
        self._world, self._blocks, self._owners = world, blocks or BlockMaps(coordinator), Owners(world.loaders)
        self._coordinator, self._token, self._metrics = coordinator, token, metrics
        self._clients: dict[str, tuple[LoaderAddress, SliceClient]] = {}
        self._block_maps: dict[str, BlockMap] = {}
        self._said: dict[str, float] = {}  # when the log last had a line about a loader
        self._closed = False
        self._pool = ThreadPoolExecutor(_LOADERS_AT_ONCE, thread_name_prefix="fetch")

    def fetch(
        self, wanted: Sequence[SliceRequest], active: Callable[[], bool]
    ) -> tuple[list[Tokens], Mapping[int, str]]:
        """Tokens of each wanted slice, and digests by position in `wanted`.

        Waits for loaders, and for a coordinator that gets the index from them again. Raises Stale once not `active`.
        """
        tokens: list[Tokens] = [np.empty(0, np.int32)] * len(wanted)
        digests: dict[int, str] = {}
        under_way = {
            self._pool.submit(self._from_loader, loader, [wanted[i] for i in places], active): places
            for loader, places in self._by_loader(wanted, active).items()
        }
        for future in as_completed(under_way):  # what one loader refuses need not wait for another one
            (got, theirs), places = future.result(), under_way[future]
            digests |= {places[item]: digest for item, digest in theirs.items()}
            for place, part in zip(places, got, strict=True):
                tokens[place] = part
        return tokens, digests

    def _by_loader(self, wanted: Sequence[SliceRequest], active: Callable[[], bool]) -> dict[str, list[int]]:
        places: dict[str, list[int]] = defaultdict(list)
        for place, part in enumerate(wanted):
            source = part.sequence.source
            block, _ = self._block_map(source, active).locate(part.sequence.index)
            places[self._owners.of(source, block)].append(place)
        return places

    def _block_map(self, source: str, active: Callable[[], bool]) -> BlockMap:
        if source not in self._block_maps:
            self._block_maps[source] = self._repeat(active, lambda: self._blocks.get(source, _POLL), log.warning)
        return self._block_maps[source]

    def _from_loader(
        self, loader: str, wanted: list[SliceRequest], active: Callable[[], bool]
    ) -> tuple[list[Tokens], dict[int, str]]:
        return self._repeat(active, lambda: self._attempt(loader, wanted), lambda error: self._lost(loader, error))

    def _repeat(self, active: Callable[[], bool], attempt: Callable[[], T], on_error: Callable[[Any], None]) -> T:
        """What `attempt` returns once it raises no Retryable."""

        def once() -> T:
            if self._closed or not active():
                raise Stale(f"generation {self._world.generation} is over")
            return attempt()

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Retryable),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=0.5),  # training waits
            before_sleep=lambda state: on_error(state.outcome and state.outcome.exception()),
        )(once)

    def _attempt(self, loader: str, wanted: list[SliceRequest]) -> tuple[list[Tokens], dict[int, str]]:
        parts: list[list[Tokens]] = [[] for _ in wanted]
        digests: dict[int, str] = {}
        for part in self._client(loader).fetch(Request(self._world.generation, tuple(wanted)), _CALL):
            parts[part.item].append(part.tokens)
            self._metrics["coxswain_constructor_bytes_total"].labels(loader).inc(part.tokens.nbytes)
            if part.digest is not None:
                digests[part.item] = part.digest
        return [_whole(loader, part, have) for part, have in zip(wanted, parts, strict=True)], digests

    def _client(self, loader: str) -> SliceClient:
        if loader not in self._clients:
            found = self._coordinator.get("/v1/loaders", LoaderAddresses)
            address = next((a for a in found.loaders if a.name == loader), None) if found else None
            if address is None:
                raise Retryable(f"{loader} has not registered")
            self._clients[loader] = (address, SliceClient(address.host, address.port, self._token))
        return self._clients[loader][1]

    def _lost(self, loader: str, error: BaseException) -> None:
        if (now := time.monotonic()) - self._said.get(loader, float("-inf")) >= _SAID_SECONDS:
            log.warning("no data from %s: %s", loader, error)
            self._said[loader] = now
        _, client = self._clients.pop(loader, (None, None))
        if client is not None:
            client.close()

    def close(self) -> None:
        """Ends what is under way: a loader that stays away is not waited for."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for _, client in tuple(self._clients.values()):
            client.close()


def _whole(loader: str, wanted: SliceRequest, parts: Sequence[Tokens]) -> Tokens:
    tokens = np.concatenate(parts) if parts else np.empty(0, np.int32)
    if len(tokens) != wanted.stop - wanted.start:
        raise Retryable(f"{loader} sent {len(tokens)} tokens of a slice of {wanted.stop - wanted.start}")
    return tokens
