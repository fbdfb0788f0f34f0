"""The link's control calls, client against server, in one process."""

import asyncio
import contextlib
import threading

import httpcore
import httpx
import msgspec
import pytest
from aiohttp import web

from coxswain.errors import Refused, Retryable, Stale
from coxswain.wire import TOKEN_HEADER, Finished, Registered, Rendezvous
from coxswain_link.deadline import ReadDeadline
from coxswain_link.http_client import AsyncClient, Client, Closed, JobEnded
from coxswain_link.http_server import HttpService, is_loopback
from coxswain_link.metrics import build
from coxswain_link.status import StatusServer, addresses


@pytest.fixture
async def service():
    """A service of generation 3 with one route per behaviour."""
    attempts = []

    async def echo(_request, body):
        return body

    async def nothing(_request, _body):
        return None

    async def refuse(_request, _body):
        raise Refused("SourceEmpty", "source 'code' has no objects")

    async def end(_request, _body):
        raise JobEnded(Finished(0, "StopReached", "done"))

    async def flaky(_request, _body):
        attempts.append(1)
        if len(attempts) < 3:
            raise Retryable("busy")
        return Registered(generation=3)

    async def answer(request, _body):
        return web.Response(status=int(request.query["status"]), text="why")

    async def late(_request, _body):
        await asyncio.sleep(0.2)
        return Registered(generation=3)

    async def page(_request):
        return web.Response(text="for people")

    service = HttpService("secret", lambda: 3, build("coordinator"))
    service.page("/page", page)
    service.route("POST", "/v1/echo", echo, Rendezvous)
    for path, handler in {
        "nothing": nothing,
        "refuse": refuse,
        "end": end,
        "flaky": flaky,
        "answer": answer,
        "late": late,
    }.items():
        service.route("GET", f"/v1/{path}", handler)
    port = await service.start("127.0.0.1", 0)
    yield f"http://127.0.0.1:{port}"
    await service.stop()


@pytest.fixture
async def client(service):
    client = AsyncClient(service, "secret", deadline=5)
    yield client
    await client.close()


async def test_a_struct_comes_back_as_it_was_sent(client):
    """Also one of some MB. A caller that names no type gets nothing."""
    for host in ("127.0.0.1", "x" * (8 << 20)):
        sent = Rendezvous(generation=3, host=host, port=1)
        assert await client.post("/v1/echo", sent, Rendezvous) == sent
    assert await client.post("/v1/echo", sent) is None


async def test_a_service_that_only_a_restart_helps_says_so_to_its_kubelet():
    problem = ""
    service = HttpService("secret", lambda: 3, build("coordinator"), problem=lambda: problem)
    port = await service.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as caller:
        assert (await caller.get("/healthz")).status_code == 200
        problem = "the driver hangs"
        answer = await caller.get("/healthz")
    await service.stop()
    assert (answer.status_code, answer.text) == (503, "the driver hangs\n")


async def test_no_content_is_none(client):
    assert await client.get("/v1/nothing", Registered) is None


@pytest.mark.parametrize("body", [b'{"host": "\xff"}', b'{"other": ' + b"[" * 9000], ids=["no text", "nested"])
async def test_a_body_that_is_no_text_or_nested_without_end_is_a_bad_request(service, body):
    async with httpx.AsyncClient(base_url=service, headers={TOKEN_HEADER: "Bearer secret"}) as http:
        assert (await http.post("/v1/echo", content=body)).status_code == 400


@pytest.mark.parametrize("older", [0, 2])
async def test_an_older_generation_is_stale(client, older):
    with pytest.raises(Stale, match="the current one is 3"):
        await client.get("/v1/nothing", Registered, generation=older)


async def test_a_caller_that_names_no_type_gets_the_errors_all_the_same(client):
    with pytest.raises(Stale):
        await client.post("/v1/echo", Rendezvous(generation=2, host="a", port=1), generation=2)
    with pytest.raises(Refused, match="400"):
        await client.post("/v1/echo", {"host": 3})


def test_a_read_at_or_beyond_the_deadline_is_not_begun():
    deadline = ReadDeadline()
    assert deadline.left(5.0) == 5.0
    for seconds in (0.0, -0.5):
        with deadline.within(seconds), pytest.raises(httpcore.ReadTimeout):
            deadline.left(5.0)


def test_a_read_ends_at_its_own_time_out_where_that_is_earlier_and_at_the_deadline_of_its_own_thread_alone():
    deadline, found = ReadDeadline(), list[float | None]()
    with deadline.within(60.0):
        assert deadline.left(5.0) == 5.0
        assert 50.0 < deadline.left(None) <= 60.0
        other = threading.Thread(target=lambda: found.append(deadline.left(None)))
        other.start()
        other.join()
    assert found == [None]
    assert deadline.left(None) is None


async def test_the_current_and_newer_generations_are_admitted(client):
    assert await client.get("/v1/nothing", Registered, generation=3) is None
    assert await client.get("/v1/nothing", Registered, generation=4) is None


async def test_a_long_poll_lasts_beyond_the_deadline_by_the_seconds_that_it_asks_for(service):
    for_loops = AsyncClient(service, "secret", deadline=0.05)
    assert await for_loops.get("/v1/late", Registered, wait=5) == Registered(generation=3)
    await for_loops.close()
    with Client(service, "secret", deadline=0.05) as for_threads:
        found = await asyncio.to_thread(lambda: for_threads.get("/v1/late", Registered, wait=5))
    assert found == Registered(generation=3)


def test_a_call_of_a_client_that_is_closed_says_so_at_once():
    client = Client("http://127.0.0.1:9", "secret", deadline=60)
    client.close()
    with pytest.raises(Closed, match="late: this client is closed"):
        client.get("/v1/late", Registered)


async def test_a_wrong_token_is_refused_by_name(service):
    outsider = AsyncClient(service, "guess", deadline=5)
    with pytest.raises(Refused) as refused:
        await outsider.get("/v1/nothing", Registered)
    assert refused.value.reason == "TokenRejected"
    await outsider.close()


@pytest.mark.parametrize("sent", [b"Bearer \xff", b"Bearer secret\xff", b"\xff"])
async def test_a_token_that_is_no_text_is_wrong(service, caplog, sent):
    """Before, it was an error of the service: 500, and a traceback in the log for each such request of any pod."""
    async with httpx.AsyncClient(base_url=service, headers=[(TOKEN_HEADER.encode(), sent)], trust_env=False) as http:
        assert (await http.get("/v1/nothing")).status_code == 401
    assert caplog.messages == []


async def test_a_refusal_keeps_its_reason_and_message(client):
    with pytest.raises(Refused, match="source 'code' has no objects") as refused:
        await client.get("/v1/refuse", Registered)
    assert refused.value.reason == "SourceEmpty"


async def test_the_end_of_the_job_reaches_the_caller(client):
    with pytest.raises(JobEnded) as ended:
        await client.get("/v1/end", Registered)
    assert ended.value.finished.reason == "StopReached"


async def test_a_call_of_a_busy_service_is_retried(client):
    assert await client.get("/v1/flaky", Registered) == Registered(generation=3)


async def test_a_client_without_retries_calls_a_busy_service_once(service):
    once = AsyncClient(service, "secret", deadline=5, retry=False)
    with pytest.raises(Retryable, match="busy"):
        await once.get("/v1/flaky", Registered)
    await once.close()
    with Client(service, "secret", deadline=5, retry=False) as blocking, pytest.raises(Retryable, match="busy"):
        await asyncio.to_thread(blocking.get, "/v1/flaky", Registered)


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"<html>"), (200, b'{"generation": "x"}'), (410, b"gone"), (422, b"\xff")]
)
async def test_a_reply_that_is_none_of_the_services_is_asked_for_again(status, body):
    """A proxy in between may have sent it: it ends neither the job nor the thread that called."""
    answers = [web.Response(status=status, body=body), web.Response(body=b'{"generation": 3}')]

    async def answer(_request, _body):
        return answers.pop(0)

    service = HttpService("secret", lambda: 3, build("coordinator"))
    service.route("GET", "/v1/answer", answer)
    url = f"http://127.0.0.1:{await service.start('127.0.0.1', 0)}"
    client = AsyncClient(url, "secret", deadline=5)
    assert await client.get("/v1/answer", Registered) == Registered(generation=3)
    await client.close()
    await service.stop()


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (403, Retryable, "HTTP 403: why"),
        (408, Retryable, "HTTP 408: why"),
        (429, Retryable, "HTTP 429: why"),
        (500, Retryable, "HTTP 500: why"),
        (503, Retryable, "HTTP 503: why"),
        (499, Refused, "answered 499: why"),
        (404, Refused, "answered 404: why"),
        (201, Refused, "answered 201: why"),
    ],
)
async def test_an_answer_that_may_pass_is_retryable_and_any_other_is_refused(service, status, error, says):
    once = AsyncClient(service, "secret", deadline=5, retry=False)
    with pytest.raises(error, match=says):
        await once.get("/v1/answer", Registered, status=status)
    await once.close()


@pytest.mark.parametrize(
    ("limit", "wait", "connect", "read"), [(30.0, 0.0, 5.0, 10.0), (3.0, 0.0, 3.0, 3.0), (30.0, 20.0, 5.0, 30.0)]
)
def test_an_attempt_reads_for_ten_seconds_at_most_and_for_the_wait_of_a_long_poll(
    monkeypatch, limit, wait, connect, read
):
    sent = []

    class Recording(httpx.Client):
        def send(self, request, **_):
            sent.append(request)
            return httpx.Response(204, request=request)

    monkeypatch.setattr(httpx, "Client", Recording)
    with Client("http://coordinator:7400", "secret", deadline=limit) as client:
        client.get(
            "/v1/world" if wait else "/v1/world?after=3", Registered, generation=3, **({"wait": wait} if wait else {})
        )
    assert [(r.extensions["timeout"]["connect"], r.extensions["timeout"]["read"]) for r in sent] == [(connect, read)]
    assert sent[0].url.query == (f"wait={wait}".encode() if wait else b"after=3")


@pytest.mark.parametrize(("url", "verify"), [("http://coordinator:7400", False), ("https://coordinator:7400", True)])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_calls_never_go_through_a_proxy_and_load_certificates_only_for_https(monkeypatch, kind, url, verify):
    found, plain = {}, getattr(httpx, kind.__name__)

    def recording(**settings):
        found.update(settings)
        return plain(**settings)

    monkeypatch.setattr(httpx, kind.__name__, recording)
    kind(url, "secret")
    assert (found["trust_env"], found["verify"]) == (False, verify)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_an_answer_that_never_ends_is_given_up_at_the_deadline(kind):
    """Each part comes long before the time-out of a single read."""

    async def drip(request, _body):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)  # the service's own pace

    service = HttpService("secret", lambda: 3, build("coordinator"))
    service.route("GET", "/v1/drip", drip)
    url = f"http://127.0.0.1:{await service.start('127.0.0.1', 0)}"
    client, asynchronous = kind(url, "secret", deadline=0.3), kind is AsyncClient
    called = (
        client.get("/v1/drip", Registered) if asynchronous else asyncio.to_thread(client.get, "/v1/drip", Registered)
    )
    with pytest.raises(Retryable, match=r"did not succeed within 0\.3 s"):
        await asyncio.wait_for(called, 60)
    await client.close() if asynchronous else client.close()
    await service.stop()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_headers_that_arrive_byte_by_byte_are_given_up_at_the_deadline(kind):
    """Each byte comes long before the time-out of a single read, and the headers have no end."""

    handlers = []

    async def drip(reader, writer):
        handlers.append(asyncio.current_task())
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)  # the service's own pace

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        client = kind(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "secret", deadline=0.3)
        called = client.get("/", Registered) if kind is AsyncClient else asyncio.to_thread(client.get, "/", Registered)
        with pytest.raises(Retryable, match=r"did not succeed within 0\.3 s"):
            await asyncio.wait_for(called, 20)
        await client.close() if kind is AsyncClient else client.close()
        await asyncio.gather(*handlers)


async def test_an_absent_service_is_retryable_once_the_deadline_is_over():
    absent = AsyncClient("http://127.0.0.1:1", "secret", deadline=0.2)
    with pytest.raises(Retryable, match=r"within 0\.2 s"):
        await absent.get("/v1/nothing", Registered)
    await absent.close()


async def test_a_malformed_body_is_refused_and_the_service_continues(service, client):
    class Other(msgspec.Struct):
        port: str

    with pytest.raises(Refused, match="400"):
        await client.post("/v1/echo", Other("x"), Rendezvous)
    assert await client.get("/v1/nothing", Registered) is None


async def test_a_caller_that_ends_in_the_middle_of_its_call_is_no_error_of_the_service(service, client, caplog):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(service.rpartition(":")[2]))
    head = f"POST /v1/echo HTTP/1.1\r\nHost: x\r\n{TOKEN_HEADER}: Bearer secret\r\nContent-Length: 99\r\n"
    writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
    async with asyncio.timeout(5):
        assert b"100" in await reader.readline()  # the service waits for the body
    writer.close()
    await writer.wait_closed()
    assert await client.get("/v1/nothing", Registered) is None
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("host", "listens"),
    [
        ("10.0.0.7", ("10.0.0.7", "127.0.0.1")),
        ("fd00::7", ("fd00::7", "::1")),
        ("127.64.0.3", ("127.64.0.3",)),
        ("0.0.0.0", ("0.0.0.0",)),
    ],
)
def test_a_service_in_a_pod_also_listens_on_the_loopback_address(host, listens):
    assert addresses(host) == listens


@pytest.mark.parametrize(
    ("path", "says"),
    [("/metrics", "coxswain_world_generation"), ("/healthz", "ok"), ("/readyz", "ready"), ("/page", "for")],
)
async def test_metrics_health_and_pages_need_no_token(service, path, says):
    async with httpx.AsyncClient(base_url=service, trust_env=False) as stranger:
        answer = await stranger.get(path)
    assert (answer.status_code, says in answer.text) == (200, True)


@pytest.fixture
def readiness():
    """Whether the status server is ready."""
    return {"ready": False}


@pytest.fixture
def status(readiness):
    server = StatusServer("127.0.0.1", 0, build("loader"), lambda: readiness["ready"])
    yield f"http://127.0.0.1:{server.port}"
    server.close()


def test_a_service_without_an_event_loop_serves_its_health_and_metrics(status, readiness):
    with httpx.Client(base_url=status, trust_env=False) as client:
        assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/other")] == [200, 503, 404]
        readiness["ready"] = True
        assert client.get("/readyz?verbose").text == "ready\n"
        assert "coxswain_loader_cache_bytes" in client.get("/metrics").text


def test_a_port_that_is_taken_is_named(status):
    port = int(status.rsplit(":", 1)[1])
    with pytest.raises(Retryable, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        StatusServer("127.0.0.1", port, build("loader"))


async def test_a_page_is_shown_to_another_pod_only_with_the_token(service, monkeypatch):
    monkeypatch.setattr(web.BaseRequest, "remote", property(lambda self: "10.1.2.3"))
    async with httpx.AsyncClient(base_url=service, trust_env=False) as http:
        refused = await http.get("/page")
        wrong = await http.get("/page", headers={TOKEN_HEADER: "Bearer wrong"})
        shown = await http.get("/page", headers={TOKEN_HEADER: "Bearer secret"})
        metrics = await http.get("/metrics")
    assert (refused.status_code, wrong.status_code, shown.status_code, metrics.status_code) == (403, 403, 200, 200)
    assert "kubectl port-forward" in refused.text and "for people" not in refused.text


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True), ("127.64.3.2", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False), ("fd00::1", False), ("0.0.0.0", False), ("", False), (None, False), ("localhost", False),
    ],
)  # fmt: skip
def test_only_an_address_of_the_loopback_is_of_the_pod_itself(address, local):
    assert is_loopback(address) == local
