"""What the operator needs before it acts: a server that is away, or forbids it, is awaited."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from coxswain.errors import Refused, Retryable
from coxswain_operator.cluster import AlreadyExists, Conflict, Denied
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.discovery import find_gang_backend
from coxswain_operator.kubernetes.token_keys import load_keys
from coxswain_operator.kubernetes.until_given import PAUSE_SECONDS
from coxswain_operator.views import Manifest

pytestmark = pytest.mark.looptime(start=1000)

AWAY, FORBIDDEN = Retryable("connection refused"), Denied("Forbidden", "cannot get resource secrets")
KEYS = {"data": {"key-1": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}}


class Server:
    """Gives these answers one after the other, and the last one for ever."""

    def __init__(self, *answers: Manifest | Exception) -> None:
        self._answers = [*answers]
        self.asked = 0

    async def call(self, method: str, path: str, *_: Any, **__: Any) -> Manifest:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("error", [AWAY, FORBIDDEN])
async def test_the_keys_are_asked_for_until_the_server_answers_and_permits_it(error: Exception) -> None:
    server, began = Server(error, error, error, KEYS), asyncio.get_running_loop().time()
    assert len(await load_keys(cast("Connection", server), "coxswain-system")) == 1
    assert (server.asked, asyncio.get_running_loop().time() - began) == (4, pytest.approx(3 * PAUSE_SECONDS))


async def test_a_server_that_asks_for_a_longer_pause_is_asked_after_it() -> None:
    server, began = Server(Retryable("429", after=30.0), KEYS), asyncio.get_running_loop().time()
    await load_keys(cast("Connection", server), "coxswain-system")
    assert asyncio.get_running_loop().time() - began == 30.0


@pytest.mark.parametrize("error", [AlreadyExists("by another operator"), Conflict("a quota has changed")])
async def test_keys_whose_creation_meets_another_write_are_looked_at_again_at_once(error: Exception) -> None:
    """Two operators of a new release start together: the later one must not stand by a pause later."""
    missing, clock = NotFound("no such Secret"), asyncio.get_running_loop().time
    began, server = clock(), Server(missing, error, KEYS)
    assert len(await load_keys(cast("Connection", server), "coxswain-system")) == 1
    assert (server.asked, clock() - began) == (3, 0.0)
    began, server = clock(), Server(missing, error, missing, missing, error, KEYS)  # one that is deleted meanwhile
    assert len(await load_keys(cast("Connection", server), "coxswain-system")) == 1
    assert (server.asked, clock() - began) == (6, pytest.approx(PAUSE_SECONDS))


@pytest.mark.parametrize("error", [AWAY, FORBIDDEN])
async def test_a_scheduler_is_looked_for_until_the_server_answers_and_permits_it(error: Exception) -> None:
    server = Server(error, error, {"resources": [{"name": "podgroups"}]})
    assert await find_gang_backend(cast("Connection", server), "Volcano") == "Volcano"


@pytest.mark.parametrize(
    "answer",
    [
        Refused("BadRequest", "no such field"),
        {"data": {"key-1": "c2hvcnQ="}},
        {"data": {**KEYS["data"], "key-2": "c2hvcnQ="}},
    ],
)
async def test_what_no_wait_mends_is_raised_at_once(answer: Manifest | Exception) -> None:
    server = Server(answer)
    with pytest.raises(Refused):
        await load_keys(cast("Connection", server), "coxswain-system")
    assert server.asked == 1


async def test_what_the_operator_waits_for_is_said_once_for_each_answer(caplog: pytest.LogCaptureFixture) -> None:
    """It asks each two seconds, perhaps for days."""
    await load_keys(cast("Connection", Server(*[AWAY] * 9, *[FORBIDDEN] * 9, AWAY, KEYS)), "coxswain-system")
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [f"{error}; asking again" for error in (AWAY, FORBIDDEN, AWAY)]
