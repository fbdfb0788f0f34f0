"""Sources on a real S3 server read like files."""

from __future__ import annotations

import msgspec
import pytest

from coxswain.config import EndpointConfig, MixConfig, SourceConfig, TokenizerConfig
from coxswain.errors import Refused
from coxswain.membership.values import Sequence
from coxswain.names import ENV_STORE_PATIENCE
from coxswain_data.local import LocalData
from coxswain_link.s3 import find_access, open_s3
from coxswain_link.store import Store, StoreUnavailable, open_store
from tests.local.data_plane import Corpus, job_of, write_corpus
from tests.s3proxy import S3Proxy, drawn, lost
from tests.s3server import S3Server

pytestmark = pytest.mark.binaries("versitygw")


@pytest.fixture(scope="module")
def s3():
    with S3Server() as server:
        yield server


@pytest.fixture
def proxy(s3):
    with S3Proxy(s3) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def corpus(s3, tmp_path_factory) -> Corpus:
    """The corpus of the data plane's tests, in a bucket as well."""
    corpus = write_corpus(tmp_path_factory.mktemp("corpus"))
    bucket = s3.bucket("corpus")
    for path in sorted(p for p in corpus.folder.rglob("*") if p.is_file()):
        s3.client().put_object(Bucket=bucket, Key=str(path.relative_to(corpus.folder)), Body=path.read_bytes())
    return corpus


def on_s3(s3: S3Server, corpus: Corpus, tmp_path, bucket: str = "corpus", url: str = "") -> LocalData:
    endpoint = EndpointConfig(url=url or s3.endpoint_url, region=s3.region, secret="s3")
    mix = job_of(corpus, tmp_path, 1).mix
    sources = tuple(msgspec.structs.replace(s, uri=f"s3://{bucket}/{s.name}/", endpoint=endpoint) for s in mix.sources)
    store = open_store((tmp_path / "runs").as_uri(), create=True)
    return LocalData(MixConfig(name="m", seed=1, sources=sources), store, s3.secrets_dir)


@pytest.mark.parametrize("source", ["code", "docs"])
@pytest.mark.parametrize("faults", [0.0, 0.15], ids=["without faults", "behind faults"])
def test_every_document_comes_out_as_it_was_put_in(s3, proxy, corpus, tmp_path, source, faults):
    proxy.plan = drawn(4, faults)
    data = on_s3(s3, corpus, tmp_path, url=proxy.endpoint_url)
    assert sum(b.samples for b in data.blocks(source)) == len(corpus.documents[source])
    for index, text in enumerate(corpus.documents[source]):
        length = len(text.encode()) + 1
        assert data.tokens(Sequence(source, 0, index, 0, length, length)).tolist() == [*text.encode(), 256]
    assert bool(faults) == bool(proxy.befallen.total())


@pytest.mark.parametrize("source", ["code", "docs"])
def test_a_source_whose_bucket_is_missing_is_not_reported_as_damaged(s3, proxy, corpus, tmp_path, source, monkeypatch):
    monkeypatch.setenv(ENV_STORE_PATIENCE, "0.5")
    data = on_s3(s3, corpus, tmp_path, url=proxy.endpoint_url)
    data.blocks(source)
    proxy.plan = lost("corpus")
    with pytest.raises(StoreUnavailable, match=f"s3://corpus/{source}/.*: there is no such bucket"):
        data.tokens(Sequence(source, 0, 0, 0, 1, 1))


def test_an_object_that_is_overwritten_is_refused_by_its_name(s3, corpus, tmp_path):
    data = on_s3(s3, corpus, tmp_path)
    first = next(i for i, b in enumerate(data.blocks("docs")) if b.path == "5.jsonl")
    index = sum(b.samples for b in data.blocks("docs")[:first])
    s3.client().put_object(
        Bucket="corpus", Key="docs/5.jsonl", Body=(corpus.folder / "docs/5.jsonl").read_bytes()[::-1]
    )
    with pytest.raises(Refused, match=r"s3://corpus/docs/5\.jsonl") as caught:
        data.tokens(Sequence("docs", 0, index, 0, 1, 1))
    assert caught.value.reason == "SourceChanged"


def test_a_bucket_that_does_not_exist_is_refused_by_its_uri(s3, corpus, tmp_path):
    with pytest.raises(Refused, match=r"s3://nowhere/code/") as caught:
        on_s3(s3, corpus, tmp_path, "nowhere").blocks("code")
    assert caught.value.reason == "SourceNotFound"


KEYS = ("a b.txt", "50%.txt", "a%20b.txt", "ü#1.txt", "[x]?.txt", "~a+b&c=d.txt", "日本.txt", "deep/er/x.txt")


def put(s3, bucket: str, **contents: bytes) -> str:
    s3.bucket(bucket)
    for key, body in contents.items():
        s3.client().put_object(Bucket=bucket, Key=key, Body=body)
    return bucket


def texts(s3, tmp_path, bucket: str) -> list[bytes]:
    """All documents of a bucket of Text objects, in the order of the index."""
    endpoint = EndpointConfig(url=s3.endpoint_url, region=s3.region, secret="s3")
    source = SourceConfig(
        name="mine", source="mine", uri=f"s3://{bucket}/", format="Text", include="**", text_field="",
        tokenizer=TokenizerConfig(kind="bytes"), weight=1, endpoint=endpoint,
    )  # fmt: skip
    store = open_store((tmp_path / "runs").as_uri(), create=True)
    data = LocalData(MixConfig(name="m", seed=1, sources=(source,)), store, s3.secrets_dir)
    lengths = [b.tokens for b in data.blocks("mine") if b.samples]
    return [bytes(data.tokens(Sequence("mine", 0, i, 0, n - 1, n)).tolist()) for i, n in enumerate(lengths)]


def paged(s3: S3Server, url: str, bucket: str, page: int) -> Store:
    """A bucket that is listed by so many keys at a time."""
    endpoint = EndpointConfig(url=url, region=s3.region, secret="s3")
    access = find_access(endpoint, s3.secrets_dir)
    return Store(open_s3(bucket, "", endpoint, access), f"s3://{bucket}/", access, page_keys=page)


@pytest.mark.parametrize("page", [1, 3, 1000])
def test_a_key_may_have_any_letters(s3, proxy, tmp_path, page):
    bucket = put(s3, f"letters-{page}", **{key: key.encode() for key in KEYS})
    store = paged(s3, proxy.endpoint_url, bucket, page)
    assert [info.path for info in store.list()] == sorted(KEYS)
    assert proxy.calls["GET"] == 2 * (len(KEYS) // page + 1)  # each page twice: nothing guards it
    assert [store.get(key) for key in KEYS] == [key.encode() for key in KEYS]
    assert sorted(texts(s3, tmp_path, bucket)) == sorted(key.encode() for key in KEYS)


def test_marks_of_folders_are_no_documents(s3, tmp_path):
    contents = {"full-2/a.txt": b"zero", "full/a.txt": b"one", "none.txt": b"", "z.txt": b"two"}
    bucket = put(s3, "marks", **{"empty/": b"", "full/": b""}, **contents)
    assert texts(s3, tmp_path, bucket) == [b"zero", b"one", b"two"]
