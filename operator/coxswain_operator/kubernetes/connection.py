"""HTTP calls to an API server: one session, retries that honour what the server asks for, and its refusals as our errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any

import aiohttp
import msgspec
import tenacity
from aiohttp.connector import NEEDS_CLEANUP_CLOSED

from coxswain.errors import CoxswainError, Refused, Retryable
from coxswain.structs import UNDECODABLE
from coxswain_operator.cluster import AlreadyExists, Conflict, Denied
from coxswain_operator.kubernetes.access import Access
from coxswain_operator.kubernetes.limiter import AdaptiveLimiter
from coxswain_operator.views import Manifest

JSON, APPLY, MERGE = "application/json", "application/apply-patch+yaml", "application/merge-patch+json"
AT_ONCE = 64  # requests
NEAR_SECONDS = 2.0  # clocks that are nearer to one another are together: dates of answers have whole seconds
_LONGEST_PAUSE = 120.0  # seconds that a server may ask for: /healthz allows a silence of 180
_NO_LIMIT = aiohttp.ClientTimeout(total=None)
_DECODER = msgspec.json.Decoder()
# Of an admission that the cluster's administrator may change. A webhook that names no code answers 400, a policy 422.
_ADMISSION = ("admission webhook", "ValidatingAdmissionPolicy")
_UNKNOWN_FIELD = "field not declared in schema"  # by an apply, which answers 500: the installed kinds are older


class NotFound(CoxswainError):
    """There is no such object, or the server does not know the kind."""


class Expired(CoxswainError):
    """The server no longer remembers this resourceVersion: list again."""


class AuthorityChanged(CoxswainError):
    """The server's certificate is of an authority that this process has not read: a restart reads it."""


class Busy(Retryable):
    """The server answered each attempt, and could not do it now (429, 5xx)."""


class BrokenOff(Retryable):
    """The connection of a watch broke, or there was none. Not after a silence: the server may have been another since."""


class _Again(Exception):
    """This attempt failed in a way that may pass. `after`: seconds that the server asks to wait. `busy`: it has answered so."""

    def __init__(self, message: str, after: float = 0.0, busy: bool = False) -> None:
        super().__init__(message)
        self.after, self.busy = after, busy


class _CutShort(_Again):
    """The call's time was over in mid-attempt: what the attempt before met says more."""


class Connection:
    """Calls of one API server. Use as `async with`.

    Errors: NotFound, Expired, AlreadyExists, Conflict; with the server's message Refused for what it never accepts, and
    Denied for what others forbid; AuthorityChanged; Retryable once the deadline has passed, or at once where the server asks
    for a longer pause.
    """

    def __init__(
        self,
        access: Access,
        deadline: float = 10.0,
        at_once: int = AT_ONCE,
        on_response: Callable[[str, int], None] | None = None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`at_once`: most requests under way, without watches. `on_response` gets method and status code. While `may_write`
        returns False, all but GET raise Retryable unsent."""
        self._may_write = may_write
        self._access, self._deadline, self._on_response = access, deadline, on_response or (lambda method, status: None)
        self._pace = AdaptiveLimiter(at_once)
        self._ahead = 0.0  # seconds by which the server's clock is ahead of this machine's

    def now(self) -> float:
        """Seconds since 1970 by the server's clock, as its last answer said; by this machine's, as long as none has said it."""
        return time.time() + self._ahead

    async def __aenter__(self) -> Connection:
        # trust_env stays off: the way to the API server is the kubeconfig's business, not the environment's.
        trust = self._access.trust.context() if self._access.url.startswith("https") else True
        # limit=0: watches hold connections for long, and the places are counted here.
        connector = aiohttp.TCPConnector(ssl=trust, limit=0, enable_cleanup_closed=NEEDS_CLEANUP_CLOSED)
        self._http = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = JSON, deadline: float = 0.0, **params: Any
    ) -> Manifest:
        """As `send`, decoded."""
        answer = await self.send(method, path, body, content_type, deadline, **params)
        try:
            decoded: Manifest = _DECODER.decode(answer)
        except UNDECODABLE as error:  # of a proxy on the way
            raise Retryable(f"{method} {path}: the answer is no JSON: {error}; {answer[:200]!r}") from error
        return decoded

    async def send(
        self, method: str, path: str, body: Any = None, content_type: str = JSON, deadline: float = 0.0, **params: Any
    ) -> bytes:
        """The answer's body. Repeated until the deadline, so a create may find what its own first attempt created."""
        limit, met = deadline or self._deadline, list[_Again]()
        again, end = tenacity.AsyncRetrying(**_policy(limit, met)), asyncio.get_running_loop().time() + limit
        try:
            return await again(self._attempt, method, path, body, content_type, params, end)
        except _Again as error:
            said = met[-1] if met and isinstance(error, _CutShort) else error
            kind = Busy if said.busy else Retryable
            raise kind(f"{method} {path} did not succeed within {limit:g} s: {said}", said.after) from error

    async def _attempt(
        self, method: str, path: str, body: Any, content_type: str, params: dict[str, Any], end: float
    ) -> bytes:
        try:
            async with self._pace.slot(_Again, end):
                if method != "GET" and not self._may_write():
                    raise Retryable(f"{method} {path} was not sent: the Lease is lost, and another operator may lead")
                return await self._answer(method, path, body, content_type, params, end)
        except TimeoutError as error:
            message = f"not sent: {self._pace.limit} other requests are under way, and no more are allowed"
            raise _CutShort(message) from error

    async def _answer(
        self, method: str, path: str, body: Any, content_type: str, params: dict[str, Any], end: float
    ) -> bytes:
        """Not aiohttp's own limit of a whole request: where it passes together with a caller's, the caller's is lost."""
        try:
            async with (
                asyncio.timeout_at(end),
                self._request(method, path, body, content_type, params, _NO_LIMIT) as response,
            ):
                self._on_response(method, response.status)
                self._ahead = _ahead(response.headers.get("Date", ""), time.time())
                return _read(method, path, response, await response.read())
        except (aiohttp.ClientError, OSError) as error:
            if type(error) is TimeoutError:  # the limit above
                raise _CutShort("no answer") from error
            self._check_authority(error)
            raise _Again(f"{type(error).__name__}: {error}") from error

    async def lines(self, path: str, silence: float, torn: bool = False, **params: str) -> AsyncIterator[bytes]:
        """A watch's messages until the server ends it. Raises Retryable after `silence` seconds without one, Expired.

        `torn`: a last line without an end counts, too.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._deadline, sock_read=silence)
        try:
            async with self._request("GET", path, None, JSON, params, timeout) as response:
                if response.status != 200:
                    _read("GET", path, response, await response.read())
                async for line in _split(response, torn):
                    yield line
        except _Again as error:
            raise (Busy if error.busy else Retryable)(f"GET {path} is refused for now: {error}", error.after) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._check_authority(error)
            kind = Retryable if isinstance(error, TimeoutError) else BrokenOff
            raise kind(f"GET {path} broke off: {type(error).__name__}: {error}") from error

    def _check_authority(self, error: Exception) -> None:
        if isinstance(error, aiohttp.ClientSSLError) and self._access.is_outdated():
            message = (
                f"the file of the API server's authorities has changed since the start, which a restart mends: {error}"
            )
            raise AuthorityChanged(message) from error

    def _request(
        self,
        method: str,
        path: str,
        body: Any,
        content_type: str,
        params: dict[str, str],
        timeout: aiohttp.ClientTimeout,
    ) -> Any:
        headers = {"Content-Type": content_type, "User-Agent": "coxswain-operator"}
        if authorization := self._access.authorization():
            headers["Authorization"] = authorization
        data = None if body is None else msgspec.json.encode(body)
        return self._http.request(
            method,
            self._access.url + path,
            data=data,
            params=params,
            headers=headers,
            timeout=timeout,
            proxy=self._access.proxy,
        )


async def _split(response: aiohttp.ClientResponse, torn: bool) -> AsyncIterator[bytes]:
    """Lines of any length: those of aiohttp's own reader must fit its buffer."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
    if torn and rest:
        yield rest


def _read(method: str, path: str, response: aiohttp.ClientResponse, body: bytes) -> bytes:
    if response.status < 300:
        return body
    reason, message = _status(body)
    message = f"{method} {path}: {message or response.reason}"
    match response.status:
        case _ if _UNKNOWN_FIELD in message:
            raise Denied(reason or "Invalid", message)
        case 401 | 408:
            raise _Again(message, _pause(response))
        case code if code == 429 or code >= 500:
            raise _Again(message, _pause(response), busy=True)
        case 404:
            raise NotFound(message)
        case 409:
            raise AlreadyExists(message) if reason == "AlreadyExists" else Conflict(message)
        case 410:
            raise Expired(message)
        case 400 | 413 | 422 if not any(words in message for words in _ADMISSION):
            raise Refused(reason or f"Http{response.status}", message)
        case code:
            raise Denied(reason or f"Http{code}", message)


def _status(body: bytes) -> tuple[str, str]:
    """Reason and message of a `Status` object; the plain text of anything else."""
    try:
        status = json.loads(body)
        return str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError):
        return "", body[:500].decode(errors="replace").strip()


def _ahead(date: str, now: float) -> float:
    """By how much an answer's date is later than this machine's clock; 0 for one that is near, and for none."""
    try:
        found = parsedate_to_datetime(date).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return found if abs(found) > NEAR_SECONDS else 0.0


def _pause(response: aiohttp.ClientResponse) -> float:
    asked = response.headers.get("Retry-After", "")
    return min(float(asked), _LONGEST_PAUSE) if asked.isdecimal() else 0.0


def _policy(limit: float, met: list[_Again]) -> dict[str, Any]:
    """`met`: gets what each attempt met that is repeated."""
    jitter = tenacity.wait_random_exponential(multiplier=0.2, max=2.0)

    def met_by(state: tenacity.RetryCallState) -> _Again:
        error = state.outcome.exception() if state.outcome else None
        assert isinstance(error, _Again)  # no other is repeated
        return error

    return {
        "retry": tenacity.retry_if_exception_type(_Again),
        "stop": tenacity.stop_before_delay(limit),
        "wait": lambda state: max(jitter(state), met_by(state).after),
        "before_sleep": lambda state: met.append(met_by(state)),
        "sleep": asyncio.sleep,
        "reraise": True,
    }
