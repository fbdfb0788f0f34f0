"""Slices of sequences over Arrow Flight: requests, and batches of about a MiB."""

from __future__ import annotations

import hmac
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import flight

from coxswain.errors import CoxswainError, Refused, Retryable, Stale, crashed
from coxswain.membership.values import Sequence
from coxswain.names import host_port
from coxswain.structs import UNDECODABLE, prepare
from coxswain.termination import fitting
from coxswain.wire import TOKEN_HEADER, Fault

log = logging.getLogger(__name__)

BATCH_TOKENS = 256 << 10  # of a record batch: 1 MiB
_LAST_REQUESTS = 1.0  # seconds
SCHEMA = pa.schema([("item", pa.int32()), ("digest", pa.string()), ("tokens", pa.list_(pa.int32()))])
"""Of every record batch: a `SlicePart` a row."""


class SliceRequest(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, stop) of a sequence, from its first one.

    `stop` may be one past its end: a label.
    """

    sequence: Sequence
    start: int
    stop: int


class Request(msgspec.Struct, frozen=True):
    """The Flight ticket."""

    generation: int
    slices: tuple[SliceRequest, ...]


class SlicePart(NamedTuple):
    """Consecutive tokens of the `item`-th slice of a request.

    `digest` (of the whole sequence) comes with its token 0.
    """

    item: int
    tokens: NDArray[np.int32]
    digest: str | None = None


Serve = Callable[[Request], Iterator[SlicePart]]


class SliceServer(flight.FlightServerBase):  # type: ignore[misc]
    """A loader's Flight endpoint.

    `serve` may raise Stale, Refused or Retryable, also within a stream.

    Listens on construction (at `port`); `serve()` blocks, `close()` ends it.
    """

    def __init__(self, host: str, port: int, token: str, serve: Serve) -> None:
        self._serve = serve
        try:
            super().__init__(f"grpc://{host_port(host, port)}", middleware={"token": _TokenCheck(token)})
        except pa.ArrowException as error:  # it has no cause
            raise Retryable(f"cannot listen on {host}:{port}; does another process listen there?") from error

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        try:
            request = msgspec.json.decode(ticket.ticket, type=Request)
        except UNDECODABLE as error:
            raise to_flight(Refused("BadRequest", f"not a request for slices: {error}")) from error
        return flight.GeneratorStream(SCHEMA, self._batches(request))

    def serve(self) -> None:
        """Blocks until `close`. Arrow's own `serve` does no more but watch signals, through a pipe whose end, beside another
        server's, may close a descriptor that is in use again."""
        self.wait()

    def close(self) -> None:
        """Ends after at most a second: `shutdown` alone waits for requests without a limit."""
        ending = threading.Thread(target=self.shutdown, name="flight-end", daemon=True)
        ending.start()
        ending.join(_LAST_REQUESTS)

    def _batches(self, request: Request) -> Iterator[pa.RecordBatch]:
        try:
            for rows in into_batches(_rows(self._serve(request))):
                yield record_batch(rows)
        except CoxswainError as error:
            raise to_flight(error) from error
        except Exception as error:  # Arrow would send its text alone, as of a loader that cannot be reached
            log.exception("unexpected error")
            raise to_flight(crashed("the loader", error)) from error


class SliceClient:
    """A constructor's connection to one loader.

    Raises the loader's errors, and Retryable when it is unreachable.
    """

    def __init__(self, host: str, port: int, token: str) -> None:
        self._where = host_port(host, port)
        # Traffic within a job never goes through a proxy.
        self._client = flight.FlightClient(f"grpc://{self._where}", generic_options=[("grpc.enable_http_proxy", 0)])
        self._headers = [(TOKEN_HEADER.lower().encode(), f"Bearer {token}".encode())]

    def fetch(self, request: Request, deadline: float) -> Iterator[SlicePart]:
        """Parts in the order of the request. `deadline`: seconds for the whole."""
        options = flight.FlightCallOptions(timeout=deadline, headers=self._headers)
        with _as_ours(self._where):
            reader = self._client.do_get(flight.Ticket(msgspec.json.encode(request)), options)
            for chunk in reader:
                yield from _parts(chunk.data)

    def close(self) -> None:
        self._client.close()


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> None:
        """gRPC writes the names of headers in lower case."""
        [sent] = headers.get(TOKEN_HEADER.lower(), [""])
        if not hmac.compare_digest(sent.encode(), self._expected):
            raise flight.FlightUnauthenticatedError("wrong or missing job token")


def _rows(parts: Iterator[SlicePart]) -> Iterator[SlicePart]:
    """Cuts long parts: a sequence of a million tokens becomes several batches."""
    for part in parts:
        for start in range(0, max(1, len(part.tokens)), BATCH_TOKENS):
            yield SlicePart(part.item, part.tokens[start : start + BATCH_TOKENS], part.digest if start == 0 else None)


def into_batches(rows: Iterable[SlicePart], least: int = BATCH_TOKENS) -> Iterator[list[SlicePart]]:
    """Groups rows into batches: one ends with the row that gives it `least` tokens, the last one with the rows."""
    batch: list[SlicePart] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row.tokens)
        if size >= least:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def record_batch(rows: list[SlicePart]) -> pa.RecordBatch:
    """What is sent of these rows, by `SCHEMA`."""
    offsets = np.cumsum([0, *(len(r.tokens) for r in rows)], dtype=np.int32)
    tokens = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate([r.tokens for r in rows])))
    return pa.record_batch(
        [pa.array([r.item for r in rows], pa.int32()), pa.array([r.digest for r in rows], pa.string()), tokens],
        schema=SCHEMA,
    )


def _parts(batch: pa.RecordBatch) -> Iterator[SlicePart]:
    items, digests, tokens = (batch.column(name) for name in ("item", "digest", "tokens"))
    offsets, values = tokens.offsets.to_numpy(), tokens.values.to_numpy()
    for row, (item, digest) in enumerate(zip(items.to_pylist(), digests.to_pylist(), strict=True)):
        yield SlicePart(item, values[offsets[row] : offsets[row + 1]], digest)


def to_flight(error: CoxswainError) -> flight.FlightError:
    """The error's kind travels as the reason of a Fault in `extra_info`, as much of it as gRPC's headers hold."""
    fault = fitting(Fault(error.reason, str(error), retryable=not isinstance(error, Refused)))
    return flight.FlightServerError(error.reason, msgspec.json.encode(fault))


@contextmanager
def _as_ours(where: str) -> Iterator[None]:
    try:
        yield
    except flight.FlightUnauthenticatedError as error:
        raise Refused(
            "TokenRejected",
            f"loader {where} refused the job's token; restart the pod so that it mounts the current Secret",
        ) from error
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        raise _from_flight(where, error) from error


def _summary(error: Exception) -> str:
    """The error without its traceback and debug context."""
    return re.split(r"\. (?:gRPC client debug context|Detail): ", str(error).splitlines()[0])[0][:300]


def _from_flight(where: str, error: Exception) -> CoxswainError:
    extra = getattr(error, "extra_info", b"")
    if not extra:
        return Retryable(f"loader {where} is unreachable: {_summary(error)}")
    fault = msgspec.json.decode(extra, type=Fault)
    if not fault.retryable:
        return Refused(fault.reason, fault.message)
    return Stale(fault.message) if fault.reason == "Stale" else Retryable(fault.message)


prepare(__name__)
