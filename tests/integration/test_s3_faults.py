"""The store behind a failing server: passing errors are retried, damaged content is never used."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coxswain.config import EndpointConfig
from coxswain.errors import Refused
from coxswain.names import ENV_INCARNATION, ENV_STORE_PATIENCE
from coxswain_link.s3 import find_access, open_s3
from coxswain_link.store import (
    BucketNotFound,
    CorruptObject,
    NotFound,
    ObjectChanged,
    Store,
    StoreUnavailable,
    open_store,
)
from tests.faults import Corrupt, Cut, Delay, Lose, Refuse, Shorten, drawn_from, every
from tests.local.jobs import wait_until
from tests.s3proxy import Call, Fault, S3Proxy, any_call, drawn, lost, nothing, reads, writes
from tests.s3server import S3Server

BUCKET = "store"
CONTENT = bytes(range(256)) * 400
PASSING: dict[str, Fault] = {
    "429": Refuse(429, after=1),
    "500": Refuse(500),
    "503": Refuse(503),
    "403": Refuse(403),
    "a key that has run out": Refuse(400, "ExpiredToken"),
    "no bucket": Refuse(404),
    "lost": Lose(),
    "cut": Cut(),
    "late": Delay(0.2),
    "corrupt at the start": Corrupt(0.0),
    "corrupt in the middle": Corrupt(0.5),
    "corrupt at the end": Corrupt(1.0),
}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        server.bucket(BUCKET)
        yield server


@pytest.fixture(scope="module")
def shared_proxy(s3: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(s3) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy: S3Proxy) -> Iterator[S3Proxy]:
    yield shared_proxy
    shared_proxy.plan = nothing
    shared_proxy.calls.clear()
    shared_proxy.befallen.clear()


@pytest.fixture
def opened(s3: S3Server, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], Store]:
    """Opens a folder of the bucket behind the proxy, with that many seconds of patience."""

    def open_(folder: str, patience: float = 20.0) -> Store:
        monkeypatch.setenv(ENV_STORE_PATIENCE, str(patience))
        endpoint = EndpointConfig(url=proxy.endpoint_url, region=s3.region, secret="s3")
        return open_store(f"s3://{BUCKET}/{folder}", endpoint, s3.secrets_dir)

    return open_


Opened = Callable[..., Store]


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_every_call_succeeds_after_a_passing_fault(proxy: S3Proxy, opened: Opened, fault: Fault, request) -> None:
    store = opened(hashlib.sha256(request.node.name.encode()).hexdigest())
    store.put("before", CONTENT)
    proxy.plan = every(3, any_call, fault)
    store.put("a", CONTENT)
    assert [store.create("claim", b"mine"), store.create("claim", b"theirs")] == [True, False]
    assert store.get("a") == CONTENT
    assert store.get_range("before", 100, 5000) == CONTENT[100:5000]
    assert [(o.path, o.size) for o in store.list()] == [("a", len(CONTENT)), ("before", len(CONTENT)), ("claim", 4)]
    assert (store.head("a").size, store.exists("claim"), store.exists("nothing")) == (len(CONTENT), True, False)
    store.delete("a")
    store.delete("a")
    assert [o.path for o in store.list()] == ["before", "claim"]
    assert proxy.befallen[type(fault).__name__] >= 4


def test_a_listing_of_several_pages_is_whole_though_pages_are_cut(s3: S3Server, proxy: S3Proxy, opened: Opened) -> None:
    """A page has 1,000 keys."""
    folder = s3.data / BUCKET / "pages"
    folder.mkdir()
    names = [f"{number:04d}" for number in range(2100)]
    for name in names:
        (folder / name).write_bytes(b"x")
    store = opened("pages")
    proxy.plan = every(3, any_call, Cut())
    assert [found.path for found in store.list()] == names
    assert proxy.calls["GET"] > 2 * 3 and proxy.befallen["Cut"] > 1  # every page twice, for nothing guards it


def test_of_many_claims_whose_answers_are_lost_exactly_one_wins(proxy: S3Proxy, opened: Opened) -> None:
    store = opened("claims")
    store.put("before", b"")
    proxy.plan = every(2, writes, Lose())
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: store.create("claim", b"%d" % i), range(16)))
    assert won.count(True) == 1
    assert store.get("claim") == b"%d" % won.index(True)


def test_a_claim_that_is_refused_for_a_moment_is_made(proxy: S3Proxy, opened: Opened) -> None:
    store, refusals = opened("moment"), [Refuse(403)]
    store.put("before", b"")
    proxy.plan = lambda call: refusals.pop() if refusals and writes(call) else None
    assert store.create("claim", b"mine")
    assert not refusals


def test_what_was_corrupted_on_its_way_is_never_used(s3: S3Server, proxy: S3Proxy, opened: Opened) -> None:
    store = opened("corrupt", 60)
    store.put("ours", CONTENT)
    s3.client().put_object(Bucket=BUCKET, Key="corrupt/theirs", Body=CONTENT)  # without our digest
    proxy.plan = drawn(1, 0.25)
    for at in range(0, 20_000, 1000):
        assert store.get_range("theirs", at, at + 1000) == CONTENT[at : at + 1000]
        assert store.get("ours") == store.get("theirs") == CONTENT
        assert [o.path for o in store.list()] == ["ours", "theirs"]
    assert proxy.befallen["Corrupt"] > 5


@pytest.mark.parametrize("read", [lambda s: s.get_range("theirs", 100, 5000), lambda s: s.get("theirs")[100:5000]])
def test_an_answer_that_is_shorter_than_it_says_is_read_again_though_the_second_one_is_as_short(
    s3: S3Server, proxy: S3Proxy, opened: Opened, read: Callable[[Store], bytes]
) -> None:
    """Else a source whose object has not changed would end its job."""
    store, short = opened("short"), [Shorten(), Shorten()]
    s3.client().put_object(Bucket=BUCKET, Key="short/theirs", Body=CONTENT)
    proxy.plan = lambda call: short.pop() if short and reads(call) else None
    assert read(store) == CONTENT[100:5000]
    assert not short


def test_a_range_of_an_object_that_was_replaced_is_refused_at_once(proxy: S3Proxy, opened: Opened) -> None:
    store = opened("replaced")
    store.put("a", CONTENT)
    listed = store.head("a")
    assert store.get_range("a", 100, 5000, listed.etag) == CONTENT[100:5000]
    store.put("a", CONTENT[::-1])
    asked = proxy.calls.total()
    with pytest.raises(ObjectChanged, match="a was replaced since it was listed"):
        store.get_range("a", 100, 5000, listed.etag)
    assert proxy.calls.total() == asked + 1
    assert store.last_error == ""


def test_a_bucket_that_is_lost_for_a_while_is_waited_for(proxy: S3Proxy, opened: Opened) -> None:
    store = opened("away")
    store.put("key", b"value")
    proxy.plan = lost(BUCKET)
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(store.get, "key")
        wait_until(lambda: store.last_error, "the store says that it waits")
        assert store.last_error == "s3://store/away/key: there is no such bucket"
        proxy.plan = nothing
        assert got.result(timeout=30) == b"value"
    assert store.last_error == ""


@pytest.mark.parametrize("answered", [lambda store: store.put("key", b"value"), lambda store: store.exists("none")])
def test_a_bucket_that_stays_lost_is_named_and_its_objects_do_not_count_as_deleted(
    proxy: S3Proxy, opened: Opened, answered: Callable[[Store], object]
) -> None:
    """It has been there: the store has answered, be it that there is no such object."""
    store = opened("lost", 0.1)
    answered(store)
    proxy.plan = lost(BUCKET)
    for call in (store.get, store.head, store.exists, store.delete, lambda key: store.create(key, b""), store.list):
        with pytest.raises(StoreUnavailable, match="s3://store/lost/key: there is no such bucket") as caught:
            call("key")
        assert not isinstance(caught.value, (NotFound, BucketNotFound))


def test_a_bucket_that_never_existed_is_named_without_retries(proxy: S3Proxy, opened: Opened) -> None:
    store = opened("never", 60)
    proxy.plan = lost(BUCKET)
    began = time.monotonic()
    with pytest.raises(BucketNotFound, match="s3://store/never/key: there is no such bucket"):
        store.get("key")
    assert time.monotonic() - began < 60, "it waits for as long as for a store that is away"


def test_a_bucket_that_is_lost_when_a_pod_replaces_another_one_is_waited_for(
    proxy: S3Proxy, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_INCARNATION, "1")
    store = opened("replaced")
    proxy.plan = lost(BUCKET)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(store.create, "key", b"value")
        wait_until(lambda: store.last_error, "the store says that it waits")
        proxy.plan = nothing
        assert made.result(timeout=30)


def test_keys_that_are_refused_at_first_are_refused_at_once(proxy: S3Proxy, opened: Opened) -> None:
    store = opened("refused", 60)
    proxy.plan = every(1, any_call, Refuse(403))
    for call in (store.get, store.list):
        with pytest.raises(Refused, match=r"s3://store/refused/key: credentials of Secret 's3' .*refused") as caught:
            call("key")
        assert caught.value.reason == "AccessDenied"
    assert proxy.calls.total() == 2


def test_keys_that_are_refused_later_end_the_waiting_with_the_name_of_their_secret(
    proxy: S3Proxy, opened: Opened
) -> None:
    store = opened("withdrawn", 0.5)
    store.put("key", b"value")
    proxy.plan = every(1, any_call, Refuse(403))
    with pytest.raises(Refused, match=r"credentials of Secret 's3' \(endpoint.secretRef\) refused"):
        store.get("key")
    assert proxy.calls["GET"] > 1


def test_keys_that_are_refused_for_longer_than_an_outage_may_last_are_waited_for(
    proxy: S3Proxy, opened: Opened
) -> None:
    """A kubelet takes its time to bring the Secret of rotated keys."""
    store = opened("rotated", 0.5)
    store.put("key", b"value")
    end = time.monotonic() + 1.2
    proxy.plan = lambda call: Refuse(403) if time.monotonic() < end else None
    assert store.get("key") == b"value"


def test_a_clock_that_is_off_is_not_blamed_on_the_keys(proxy: S3Proxy, opened: Opened) -> None:
    proxy.plan = every(1, any_call, Refuse(403, "RequestTimeTooSkewed"))
    with pytest.raises(Refused, match="this machine's clock and the server's differ by too much"):
        opened("clock").get("key")


@pytest.mark.parametrize("status", [429, 503])
def test_a_storm_of_refusals_is_met_with_ever_longer_pauses(proxy: S3Proxy, opened: Opened, status: int) -> None:
    store = opened("storm", 2)
    store.put("key", b"value")
    proxy.plan = every(1, any_call, Refuse(status))
    with pytest.raises(StoreUnavailable, match=f"s3://store/storm/key: the server answers {status} "):
        store.get("key")
    assert 6 <= proxy.calls["GET"] <= 40  # a client without pauses makes thousands


def test_a_server_that_falls_silent_is_asked_again(s3: S3Server, proxy: S3Proxy) -> None:
    endpoint = EndpointConfig(url=proxy.endpoint_url, region=s3.region, secret="s3")
    access = find_access(endpoint, s3.secrets_dir)
    backend = open_s3(BUCKET, "silent", endpoint, access, silence="500ms")
    store = Store(backend, f"s3://{BUCKET}/silent", access, patience=20.0)
    store.put("key", b"value")
    struck = threading.Event()

    def first(call: Call) -> Fault | None:
        silent = not struck.is_set()
        struck.set()
        return Delay(600) if silent else None

    proxy.plan = first
    assert store.get("key") == b"value"
    assert struck.is_set()


def test_an_object_that_was_damaged_where_it_lies_is_named_at_once_and_can_be_written_again(
    s3: S3Server, proxy: S3Proxy, opened: Opened
) -> None:
    store = opened("damaged")
    store.put("key", CONTENT)
    written = s3.client().head_object(Bucket=BUCKET, Key="damaged/key")["Metadata"]
    s3.client().put_object(Bucket=BUCKET, Key="damaged/key", Body=CONTENT[:-1] + b"\0", Metadata=written)
    with pytest.raises(CorruptObject, match="s3://store/damaged/key no longer has the content"):
        store.get("key")
    assert proxy.calls["GET"] == 2
    assert not store.create("key", CONTENT)
    store.put("key", CONTENT)
    assert store.get("key") == CONTENT


def test_an_object_without_a_digest_is_accepted_once_two_reads_agree(
    s3: S3Server, proxy: S3Proxy, opened: Opened
) -> None:
    client, key = s3.client(), {"Bucket": BUCKET, "Key": "parts/key"}
    upload = client.create_multipart_upload(**key)["UploadId"]
    etag = client.upload_part(**key, UploadId=upload, PartNumber=1, Body=CONTENT)["ETag"]
    parts = {"Parts": [{"ETag": etag, "PartNumber": 1}]}
    client.complete_multipart_upload(**key, UploadId=upload, MultipartUpload=parts)
    assert opened("parts").get("key") == CONTENT
    assert proxy.calls["GET"] == 2


def test_threads_share_a_store_through_many_faults(proxy: S3Proxy, opened: Opened) -> None:
    store = opened("threads", 60)
    store.put("before", b"")
    proxy.plan = drawn_from(3, 0.3, lambda call: (Refuse(503), Lose(), Cut() if reads(call) else Lose()))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: store.put(f"k/{i}", b"%d" % i), range(64)))
        assert list(pool.map(lambda i: store.get(f"k/{i}"), range(64))) == [b"%d" % i for i in range(64)]
