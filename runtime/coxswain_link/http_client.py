"""Control calls between services: JSON, bearer token, world generation, deadline.

Client side here, for threads (`Client`) and for event loops (`AsyncClient`); the server side is
`coxswain_link.http_server`.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
import tenacity

from coxswain.errors import CoxswainError, Refused, Retryable, Stale
from coxswain.import_guard import block_imports
from coxswain.structs import UNDECODABLE
from coxswain.wire import GENERATION_HEADER, TOKEN_HEADER, Fault, Finished
from coxswain_link.deadline import DeadlineBackend, ReadDeadline
from coxswain_link.job_ended import JobEnded as JobEnded

with block_imports("httpx._main"):  # its command line: rich and pygments would take longer than all the rest
    import httpx

T = TypeVar("T")

KEEP_ALIVE_SECONDS = 1800.0
"""Seconds of an idle connection: longer than a step, else every rank connects again at every step."""

_PASSING = (403, 408, 429)
"""No service sends these to a member of its job: a proxy does, as a mesh whose policy has not arrived there yet."""


class Closed(CoxswainError):
    """The client was closed, before the call or by another thread during it."""


class Again(Exception):
    """This attempt failed in a way that a retry may mend."""


class Client:
    """Calls one service until the deadline; thread-safe. 204 is None. An attempt ends at the deadline, even if parts of its
    answer still arrive.

    Errors: see `answer_of`, and `Closed`.

    Without `retry` each call makes one attempt: for callers that repeat calls themselves.
    """

    def __init__(self, base_url: str, token: str, deadline: float = 30.0, retry: bool = True) -> None:
        self._reads = ReadDeadline()
        self._http = httpx.Client(**_settings(base_url, token))
        self._http._transport._pool._network_backend = DeadlineBackend(self._reads)  # type: ignore[attr-defined]  # no argument
        self._base_url, self._deadline, self._retry = base_url, deadline, retry

    def get(
        self, path: str, type_: type[T], *, generation: int | None = None, deadline: float | None = None, **params: Any
    ) -> T | None:
        """GET; keyword arguments are query parameters.

        A `wait` parameter extends the read time-out.
        """
        return self._call("GET", path, None, type_, generation, deadline, params)

    def post(
        self,
        path: str,
        body: Any,
        type_: type[T] | None = None,
        *,
        generation: int | None = None,
        deadline: float | None = None,
    ) -> T | None:
        """POST of a struct. Repeated until the deadline, so receivers are idempotent."""
        return self._call("POST", path, msgspec.json.encode(body), type_, generation, deadline, {})

    def _call(
        self, method: str, path: str, content: bytes | None, type_: type[T] | None, generation: int | None,
        deadline: float | None, params: dict[str, Any],
    ) -> T | None:  # fmt: skip
        limit = self._deadline if deadline is None else deadline

        def attempt() -> T | None:
            try:
                response = self._whole(
                    method, path, _request(content, generation, params, limit), _seconds(limit, params)
                )
            except (httpx.TransportError, RuntimeError) as error:  # httpx raises RuntimeError when closed
                if self._http.is_closed:
                    raise Closed(f"{method} {self._base_url}{path}: this client is closed") from error
                if isinstance(error, RuntimeError):
                    raise
                raise Again(f"{type(error).__name__}: {error}") from error
            return answer_of(response, type_)

        try:
            return tenacity.Retrying(**_policy(limit if self._retry else 0.0))(attempt)
        except Again as error:
            raise Retryable(f"{method} {self._base_url}{path} did not succeed within {limit:g} s: {error}") from error

    def _whole(self, method: str, path: str, request: dict[str, Any], seconds: float) -> httpx.Response:
        """Ends by then, however slowly the parts of headers and body arrive."""
        with self._reads.within(seconds):
            return self._http.request(method, path, **request)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """The same verbs for an event loop. An attempt ends at the deadline, even if parts of its answer still arrive.

    `most`: bytes of an answer, for callers that do not trust the service. No answer is unpacked: a packed one that is small may
    be of any length.
    """

    def __init__(
        self, base_url: str, token: str, deadline: float = 30.0, retry: bool = True, most: float = float("inf")
    ) -> None:
        self._http = httpx.AsyncClient(**_settings(base_url, token))
        self._base_url, self._deadline, self._retry, self._most = base_url, deadline, retry, most

    async def get(
        self, path: str, type_: type[T], *, generation: int | None = None, deadline: float | None = None, **params: Any
    ) -> T | None:
        return await self._call("GET", path, None, type_, generation, deadline, params)

    async def post(
        self,
        path: str,
        body: Any,
        type_: type[T] | None = None,
        *,
        generation: int | None = None,
        deadline: float | None = None,
    ) -> T | None:
        return await self._call("POST", path, msgspec.json.encode(body), type_, generation, deadline, {})

    async def _call(
        self, method: str, path: str, content: bytes | None, type_: type[T] | None, generation: int | None,
        deadline: float | None, params: dict[str, Any],
    ) -> T | None:  # fmt: skip
        limit = self._deadline if deadline is None else deadline

        async def attempt() -> T | None:
            try:
                async with asyncio.timeout(_seconds(limit, params)):
                    response = await self._whole(method, path, _request(content, generation, params, limit))
            except (httpx.RequestError, TimeoutError) as error:
                raise Again(f"{type(error).__name__}: {error}") from error
            return answer_of(response, type_)

        try:
            return await tenacity.AsyncRetrying(**_policy(limit if self._retry else 0.0))(attempt)
        except Again as error:
            raise Retryable(f"{method} {self._base_url}{path} did not succeed within {limit:g} s: {error}") from error

    async def _whole(self, method: str, path: str, request: dict[str, Any]) -> httpx.Response:
        parts, size = list[bytes](), 0
        async with self._http.stream(method, path, **request) as response:
            async for part in response.aiter_raw():
                size += len(part)
                if size > self._most:
                    raise Again(f"an answer of more than {self._most} bytes")
                parts.append(part)
        return httpx.Response(response.status_code, content=b"".join(parts), request=response.request)

    async def close(self) -> None:
        await self._http.aclose()


def _settings(base_url: str, token: str) -> dict[str, Any]:
    """Settings of httpx. Plain HTTP loads no certificates: they cost 20 ms and 0.6 MB a client."""
    return {
        "base_url": base_url,
        "headers": {
            TOKEN_HEADER: f"Bearer {token}",
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",  # no service packs an answer; a proxy between them is not to
        },
        "trust_env": False,  # traffic within a job never goes through a proxy
        "verify": not base_url.startswith("http://"),
        "limits": httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=KEEP_ALIVE_SECONDS),
    }


def _seconds(limit: float, params: dict[str, Any]) -> float:
    """Of one attempt, with the `wait` of a long poll."""
    return limit + float(params.get("wait", 0.0))


def _request(content: bytes | None, generation: int | None, params: dict[str, Any], limit: float) -> dict[str, Any]:
    """Arguments of one attempt. The read time-out includes the `wait` of a long poll."""
    headers = {} if generation is None else {GENERATION_HEADER: str(generation)}
    read = min(limit, 10.0) + float(params.get("wait", 0.0))
    return {
        "content": content,
        "headers": headers,
        "params": params or None,  # an empty dict would remove the query of the path
        "timeout": httpx.Timeout(min(limit, 5.0), read=read),
    }


def _policy(limit: float) -> dict[str, Any]:
    return {
        "retry": tenacity.retry_if_exception_type(Again),
        "stop": tenacity.stop_after_delay(limit),
        "wait": tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
        "reraise": True,
    }


def answer_of(response: httpx.Response, type_: type[T] | None) -> T | None:
    """The reply's body, or the error that its status stands for. What is none of ours a proxy may have sent: it may pass."""
    try:
        return _decoded(response, type_)
    except UNDECODABLE as error:
        raise Again(f"HTTP {response.status_code}: a reply that is none of this service's ({error})") from error


def _decoded(response: httpx.Response, type_: type[T] | None) -> T | None:
    status = response.status_code
    if status == 204 or (status == 200 and type_ is None):
        return None
    if status == 200:
        return msgspec.json.decode(response.content, type=type_)
    if status == 401:
        raise Refused(
            "TokenRejected",
            f"{response.url} refused the job's token; restart the pod so that it mounts the current Secret",
        )
    if status == 409:
        raise Stale(response.text)
    if status == 410:
        raise JobEnded(msgspec.json.decode(response.content, type=Finished))
    if status == 422:
        fault = msgspec.json.decode(response.content, type=Fault)
        raise Refused(fault.reason, fault.message)
    if status >= 500 or status in _PASSING:
        raise Again(f"HTTP {status}: {response.text[:200]}")
    raise Refused("BadRequest", f"{response.url} answered {status}: {response.text[:500]}")
