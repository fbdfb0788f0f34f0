"""LIST and WATCH over a scripted connection, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import pytest

from coxswain.errors import Refused, Retryable
from coxswain_operator.cluster import Conflict, Denied
from coxswain_operator.kubernetes.connection import BrokenOff, Busy, Connection, Expired, NotFound
from coxswain_operator.kubernetes.informer import LONGEST_PAUSE, WATCH_SECONDS, Informer
from coxswain_operator.kubernetes.resources import BY_KIND

pytestmark = pytest.mark.looptime(start=1000)
Params = dict[str, str]


def config_map(name: str, version: int) -> dict[str, Any]:
    head = {"namespace": "lab", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": head, "data": {"version": str(version)}}


def page(version: int, *items: dict[str, Any], more: str = "") -> bytes:
    return json.dumps({"metadata": {"resourceVersion": str(version), "continue": more}, "items": items}).encode()


def event(kind: str, name: str, version: int) -> bytes:
    return json.dumps({"type": kind, "object": config_map(name, version)}).encode()


def bookmark(version: int) -> bytes:
    return json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}).encode()


def error(code: int) -> bytes:
    return json.dumps({"type": "ERROR", "object": {"code": code, "message": "gone"}}).encode()


class Server:
    """Answers LISTs and watches from scripts; an exception in a script is raised. The last watch stays silent."""

    def __init__(self, lists: list[Any], *watches: list[Any]) -> None:
        self.lists, self.watches = lists, list(watches)
        self.listed: list[tuple[float, Params]] = []
        self.watched: list[Params] = []
        self.while_listing: Callable[[], None] = lambda: None

    async def send(self, method: str, path: str, **params: str) -> bytes:
        assert (method, path) == ("GET", "/api/v1/configmaps")
        self.listed.append((asyncio.get_running_loop().time(), params))
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        self.while_listing()
        return answer

    async def lines(self, path: str, silence: float, **params: str) -> AsyncIterator[bytes]:
        self.watched.append(params)
        for line in self.watches.pop(0) if self.watches else [None]:
            if line is None:
                await asyncio.Event().wait()
            elif isinstance(line, Exception):
                raise line
            else:
                yield line


@asynccontextmanager
async def informing(server: Server, informer: Informer | None = None) -> AsyncIterator[Informer]:
    """A running informer; scripts that need no pause have been played."""
    informer = informer or Informer(cast("Connection", server), BY_KIND["ConfigMap"])
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.sleep(0.05)
        yield informer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def held(informer: Informer) -> dict[str, int]:
    return {entry.name[1]: entry.version for entry in informer.cache.select("")}


async def test_a_list_comes_in_pages_and_the_watch_begins_at_its_version() -> None:
    server = Server([page(0, config_map("a", 3), more="next"), page(7, config_map("b", 4))])
    async with informing(server) as informer:
        await informer.ready(0.1)
        assert held(informer) == {"a": 3, "b": 4}
    assert [params.get("continue") for _, params in server.listed] == [None, "next"]
    assert all("resourceVersion" not in params for _, params in server.listed)
    watched = server.watched[0]
    assert (watched["resourceVersion"], watched["timeoutSeconds"]) == ("7", str(WATCH_SECONDS))
    assert watched["allowWatchBookmarks"] == "true"  # else a quiet kind would be silent for longer than SILENCE_SECONDS
    everything = [*(params for _, params in server.listed), *server.watched]  # else the cluster's every object is held
    assert [p.get("labelSelector") for p in everything] == ["coxswain.dev/job-uid"] * 3


async def test_a_list_whose_pages_come_too_late_is_asked_for_as_a_whole() -> None:
    first, late = page(0, config_map("a", 3), more="next"), Expired("the provided continue parameter is too old")
    server = Server([first, late, page(9, config_map("a", 3), config_map("b", 8)), page(0)])
    async with informing(server) as informer:
        await informer.ready(0.1)
        assert held(informer) == {"a": 3, "b": 8}
    asked = [(params.get("limit"), params.get("continue"), params.get("deadline")) for _, params in server.listed]
    assert asked == [("500", None, None), ("500", "next", None), (None, None, 60.0)]
    assert server.watched[0]["resourceVersion"] == "9"


async def test_each_page_of_a_long_list_and_each_answer_of_a_busy_server_is_a_sign_of_life() -> None:
    """Else /healthz would have an operator restarted in the midst of its list, and again in the midst of the next one."""
    now, slow = asyncio.get_running_loop().time, [page(0, more="next")] * 30 + [page(7)]

    class Slow(Server):
        async def send(self, method: str, path: str, **params: str) -> bytes:
            await asyncio.sleep(9)
            return await super().send(method, path, **params)

    async with informing(Slow(slow)) as informer:
        await asyncio.sleep(200)
        assert now() - informer.heard <= 9
    async with informing(Server([Busy("429: too many requests, please try again later")])) as informer:
        await asyncio.sleep(200)
        assert now() - informer.heard <= LONGEST_PAUSE
    async with informing(Server([Retryable("no route to host")])) as informer:
        await asyncio.sleep(200)
        assert now() - informer.heard > 200


async def test_a_watch_that_ends_in_order_goes_on_at_the_version_that_it_reached() -> None:
    server = Server([page(7)], [event("ADDED", "a", 9)], [bookmark(20)], [event("DELETED", "a", 25)], [bookmark(3)], [])
    async with informing(server) as informer:
        await asyncio.sleep(10)
        assert held(informer) == {}
    assert [params["resourceVersion"] for params in server.watched] == ["7", "9", "20", "25", "25", "25"]
    assert len(server.listed) == 1


async def test_a_list_is_asked_for_again_after_the_pause_that_the_server_asks_for() -> None:
    server = Server([Busy("429: too many requests", after=30.0), page(7)])
    async with informing(server) as informer:
        await informer.ready(60.0)
    (first, _), (second, _) = server.listed
    assert second - first >= 30.0


async def test_watches_that_the_server_ends_at_once_begin_a_second_apart() -> None:
    server = Server([page(7)], *[[]] * 100)
    async with informing(server):
        await asyncio.sleep(20)
    assert len(server.watched) == 21


async def test_changes_of_the_watch_reach_the_cache() -> None:
    changes = [event("ADDED", "a", 8), event("ADDED", "b", 9), event("MODIFIED", "a", 10), event("DELETED", "b", 11)]
    async with informing(Server([page(7)], [*changes, None])) as informer:
        assert held(informer) == {"a": 10}


async def test_a_stale_deletion_in_a_watch_leaves_the_newer_object() -> None:
    async with informing(Server([page(7, config_map("a", 6))], [event("DELETED", "a", 5)])) as informer:
        assert held(informer) == {"a": 6}


@pytest.mark.parametrize("broken", [error(410), Expired("too old"), error(500), Retryable("reset"), b"{half a line"])
async def test_a_watch_that_breaks_off_is_followed_by_a_list_within_a_second_and_goes_on_there(broken: Any) -> None:
    server = Server([page(7, config_map("a", 3)), page(30, config_map("b", 20))], [broken])
    async with informing(server) as informer:
        assert len(server.listed) == 1
        await asyncio.sleep(2.0)
        assert held(informer) == {"b": 20}
    assert 0.1 <= server.listed[1][0] - server.listed[0][0] <= 1.0
    assert [params["resourceVersion"] for params in server.watched] == ["7", "30"]


async def test_a_watch_whose_connection_breaks_goes_on_at_its_version_without_a_list() -> None:
    """A load balancer that ends connections would cost a LIST of all pods each time."""
    broken = BrokenOff("reset")
    server = Server([page(7), page(40)], *[[event("MODIFIED", "a", 8 + n), broken] for n in range(20)], [error(410)])
    async with informing(server) as informer:
        await asyncio.sleep(30)
        assert held(informer) == {}  # by the LIST after the 410
    assert [params["resourceVersion"] for params in server.watched] == ["7", *map(str, range(8, 28)), "40"]
    assert len(server.listed) == 2


async def test_a_watch_that_breaks_twice_without_a_message_is_followed_by_a_list() -> None:
    """The server was away for longer: it may have been restored from a backup meanwhile."""
    broken = BrokenOff("refused")
    server = Server([page(80), page(30, config_map("b", 20))], [bookmark(90), broken], [broken])
    async with informing(server) as informer:
        await asyncio.sleep(5)
        assert held(informer) == {"b": 20}
    assert [params["resourceVersion"] for params in server.watched] == ["80", "90", "30"]


@pytest.mark.parametrize("lists", [Retryable("503"), page(7)])
async def test_pauses_grow_to_half_a_minute_for_hours_until_a_watch_has_a_message(lists: Any) -> None:
    """A server that takes the LIST and refuses the watch is not asked for everything each second."""
    refuses = [Refused("Forbidden", "no right to watch")]
    server = Server([lists], *[refuses] * 3000)
    async with informing(server):
        await asyncio.sleep(6 * 3600)
        times = [at for at, _ in server.listed]
        pauses = [b - a for a, b in pairwise(times)]
        assert min(pauses) >= 0.1 and 15 < max(pauses) <= 30.0 and pauses[0] <= 1.0
        assert len(times) > 1200 and times[-1] > 1000 + 6 * 3600 - 30
        server.lists[:] = [page(7)]
        server.watches[:] = [[bookmark(8), error(500)]]
        await asyncio.sleep(60)
        last = [at for at, _ in server.listed][len(times) :]
        assert last[1] - last[0] <= 1.0


STRANGE = [
    b'{"metadata": {"resourceVersion": "newest"}, "items": []}',
    b'{"metadata": {"resourceVersion": "7"}, "items": [{}]}',
    b'{"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a", "resourceVersion": "x"}}]}',
    b'{"metadata": {}, "items": []}',
    Conflict("409 from a proxy"),
]


@pytest.mark.parametrize("strange", STRANGE)
async def test_an_answer_of_another_shape_is_named_and_ends_no_informer(strange: Any) -> None:
    """A cache that nothing follows any more would stay as it is, without a word, until the operator is restarted."""
    async with informing(Server([strange, page(7, config_map("a", 3))])) as informer:
        with pytest.raises(Retryable, match=r"could not be listed within 0\.01 s: .+"):
            await informer.ready(0.01)
        await informer.ready(60)
        assert held(informer) == {"a": 3}
    async with informing(Server([page(7), strange, page(9, config_map("b", 8))], [error(410)])) as informer:
        await asyncio.sleep(60)
        assert held(informer) == {"b": 8}


@pytest.mark.parametrize("ahead", [bookmark(90), event("ADDED", "lost", 90)])
async def test_a_server_whose_backup_was_restored_is_followed_from_where_it_is(ahead: bytes) -> None:
    """Its versions are lower than before. The objects that the backup lacks are gone, and the others are as they were."""
    restored = page(30, config_map("a", 20), config_map("b", 25))
    server = Server(
        [page(80, config_map("a", 70)), restored], [ahead, Retryable("reset")], [event("MODIFIED", "b", 31), None]
    )
    async with informing(server) as informer:
        await asyncio.sleep(2.0)
        assert held(informer) == {"a": 20, "b": 31}
    assert [params["resourceVersion"] for params in server.watched] == ["80", "30"]


async def test_a_restored_server_that_counts_on_from_a_higher_version_is_followed_from_where_it_is() -> None:
    """As after `etcdutl snapshot restore --bump-revision`: no LIST is older than the watch before it, but objects are."""
    restored = page(1000, config_map("a", 20), config_map("b", 25))
    server = Server([page(80, config_map("a", 70), config_map("b", 25)), restored], [error(410)])
    async with informing(server) as informer:
        await asyncio.sleep(10)
        assert held(informer) == {"a": 20, "b": 25}
    assert server.watched[-1]["resourceVersion"] == "1000"


async def test_what_a_restored_server_brings_back_after_its_deletion_is_there_again() -> None:
    server = Server([page(80, config_map("a", 20)), page(1000, config_map("a", 20))], [error(410)])
    async with informing(server) as informer:
        informer.cache.apply_delete(("lab", "a"), "uid-a")
        await asyncio.sleep(10)
        assert held(informer) == {"a": 20}


async def test_a_list_that_comes_after_a_write_and_a_delete_that_it_does_not_know_is_no_restored_backup() -> None:
    server = Server([page(80, config_map("a", 70), config_map("b", 25))], [error(410)])
    async with informing(server) as informer:
        entry = informer.read(json.dumps(config_map("a", 82)).encode())

        def write_and_delete() -> None:
            informer.cache.apply_write(entry)
            informer.cache.apply_delete(("lab", "b"), "uid-b")

        server.while_listing = write_and_delete
        await asyncio.sleep(10)
        assert held(informer) == {"a": 82}
    assert len(server.listed) == 2


async def test_an_informer_that_cannot_list_is_not_ready_and_names_the_reason() -> None:
    async with informing(Server([Retryable("503: etcd has no leader")])) as informer:
        with pytest.raises(Retryable, match=r"/api/v1/configmaps .* 5 s: 503: etcd has no leader"):
            await informer.ready(5)
        with pytest.raises(Retryable, match="etcd has no leader"):
            await informer.permitted(5)


async def test_a_list_that_the_server_forbids_is_an_answer_until_it_is_allowed() -> None:
    server = Server([Refused("Forbidden", "no right")])
    async with informing(server) as informer:
        assert not await informer.permitted(1)
        server.lists[:] = [page(7)]
        await informer.ready(60)
        assert await informer.permitted(1)


async def test_a_server_that_forbids_a_list_for_a_moment_takes_nothing_that_was_known_and_a_right_that_is_gone_does() -> (
    None
):
    """One that has just started forbids everything until it has read the roles: nodes that are unknown for so long would have
    lost pods judged by other rules than those about their nodes.
    """
    server = Server([page(7)], [error(410)])
    async with informing(server) as informer:
        server.lists[:] = [Denied("Forbidden", 'clusterrole.rbac.authorization.k8s.io "coxswain-nodes" not found')]
        await asyncio.sleep(30)
        assert len(server.listed) > 2 and await informer.permitted(1)
        await asyncio.sleep(61)
        assert not await informer.permitted(1)
        server.lists[:] = [page(9)]
        await asyncio.sleep(60)
        assert await informer.permitted(1)


async def test_a_kind_that_the_server_has_never_known_is_an_answer_and_one_that_it_forgets_stays_known() -> None:
    server = Server([NotFound("404 page not found")], [error(410)])
    async with informing(server) as informer:
        assert not await informer.readable(1)
        server.lists[:] = [page(7), NotFound("404 page not found")]
        await informer.ready(60)
        await asyncio.sleep(100)
        assert len(server.listed) > 3 and await informer.readable(1)


async def test_a_kind_whose_list_is_forbidden_is_refused_at_once_until_it_is_allowed() -> None:
    server = Server([Refused("Forbidden", "no right")])
    async with informing(server) as informer:
        with pytest.raises(Denied, match="no right"):
            await informer.readable(1)
        server.lists[:] = [page(7), Refused("Forbidden", "no right")]
        server.watches[:] = [[error(410)]]
        await informer.ready(60)
        assert await informer.readable(1)
        await asyncio.sleep(100)  # the right is taken away: what was read stays
        assert len(server.listed) > 3 and await informer.readable(1)


async def test_an_error_is_said_once_and_again_after_a_list(caplog: pytest.LogCaptureFixture) -> None:
    server = Server([Retryable("503: no leader")])
    async with informing(server) as informer:
        await asyncio.sleep(600)
        assert caplog.text.count("503: no leader") == 1 < len(server.listed)
        server.lists[:] = [page(7), Retryable("503: no leader")]
        server.watches[:] = [[error(410)]]
        await informer.ready(60)
        await asyncio.sleep(600)
        assert caplog.text.count("503: no leader") == 2


@pytest.mark.parametrize(("fault", "counts"), [(Refused("Forbidden", "no"), True), (Retryable("no route"), False)])
async def test_a_refusal_is_a_sign_of_the_server_and_an_unreachable_server_gives_none(
    fault: Exception, counts: bool
) -> None:
    async with informing(Server([fault])) as informer:
        begun = informer.heard
        await asyncio.sleep(100)
        assert (informer.heard > begun) is counts


@pytest.mark.parametrize("message", [bookmark(9), event("ADDED", "a", 9)])
async def test_each_message_of_a_watch_is_a_sign_of_the_server(message: bytes) -> None:
    """Else /healthz would have an operator restarted whose watches last, as they do."""

    class Quiet(Server):
        async def lines(self, path: str, silence: float, **params: str) -> AsyncIterator[bytes]:
            await asyncio.sleep(60)
            yield message
            await asyncio.Event().wait()

    async with informing(server := Quiet([page(7)])) as informer:
        assert informer.heard == server.listed[0][0]
        await asyncio.sleep(70)
        assert informer.heard == server.listed[0][0] + 60


async def test_what_was_written_while_a_list_was_under_way_stays() -> None:
    server = Server([page(8)])
    informer = Informer(cast("Connection", server), BY_KIND["ConfigMap"])
    written = informer.read(json.dumps(config_map("mine", 9)).encode())
    server.while_listing = lambda: cast("None", informer.cache.apply_write(written))
    async with informing(server, informer):
        assert held(informer) == {"mine": 9}


async def test_a_list_that_is_as_new_as_the_watch_before_it_leaves_what_was_written_since() -> None:
    server = Server([page(8, config_map("mine", 5))], [Retryable("reset")])
    async with informing(server) as informer:
        informer.cache.apply_write(informer.read(json.dumps(config_map("mine", 9)).encode()))
        await asyncio.sleep(2.0)
        assert (len(server.listed), held(informer)) == (2, {"mine": 9})
