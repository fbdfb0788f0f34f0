"""Jobs whose sources, plan log, index and checkpoints all lie on a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coxswain.config import EndpointConfig
from coxswain.errors import Refused
from coxswain_coordinator.checkpoint_store import CheckpointStore
from coxswain_link.store import NotFound, Store, open_store
from tests.local.jobs import Object, Run, job_objects, write_corpus
from tests.s3server import S3Server
from tests.unit.coordinator_fakes import make_job

pytestmark = pytest.mark.timeout(240)

STEPS, HALF = 8, 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="module")
def s3(corpus: Path) -> Iterator[S3Server]:
    """A server with the corpus in bucket `corpus`, and an empty bucket `runs`."""
    with S3Server() as server:
        server.bucket("runs")
        bucket = server.bucket("corpus")
        for path in sorted(p for p in corpus.rglob("*") if p.is_file()):
            server.client().put_object(Bucket=bucket, Key=str(path.relative_to(corpus)), Body=path.read_bytes())
        yield server


def store(s3: S3Server, uri: str) -> Store:
    return open_store(uri, EndpointConfig(url=s3.endpoint_url, region=s3.region, secret="s3"), s3.secrets_dir)


def objects_on(s3: S3Server, **keys: Object) -> list[Object]:
    """The small job on the server; `keys` may be the endpoints' secretRef."""
    endpoint = {"url": s3.endpoint_url, "region": s3.region, **keys}
    objects = job_objects("s3://corpus", "s3://runs/small", trainers=2, stop={"steps": STEPS})
    for at in objects:
        if at["kind"] == "DataSource":
            at["spec"]["endpoint"] = endpoint
    objects[-1]["spec"]["checkpoint"]["endpoint"] = endpoint
    return objects


def secret(s3: S3Server) -> Object:
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "stringData": keys}


def keys_in_environment(s3: S3Server) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}


def test_a_run_on_s3_goes_on_from_its_checkpoint_with_the_digests_of_files(tmp_path, s3, corpus):
    files = Run(
        tmp_path / "files",
        job_objects(f"file://{corpus}", f"file://{tmp_path}/runs", trainers=1, stop={"steps": STEPS}),
    )
    assert files.run() == 0, files.output + files.logs()
    by_environment = Run(tmp_path / "one", objects_on(s3), keys_in_environment(s3))
    assert by_environment.run("--until-step", str(HALF)) == 0, by_environment.output + by_environment.logs()
    by_secret = Run(tmp_path / "two", [secret(s3), *objects_on(s3, secretRef={"name": "store"})])
    assert by_secret.run() == 0, by_secret.output + by_secret.logs()
    assert (max(by_environment.steps()), min(by_secret.steps())) == (HALF - 1, HALF)
    joined = by_environment.steps() | by_secret.steps()
    digests = [(joined[k]["stream_digest"], joined[k]["delivered_digest"]) for k in sorted(joined)]
    assert digests == files.digests()
    assert s3.secret_key not in by_environment.logs() + by_secret.logs() + by_secret.output


def test_of_many_claims_at_once_on_s3_exactly_one_wins(s3):
    runs = store(s3, "s3://runs/claims")
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda i: runs.create("claim", b"%d" % i), range(16)))
    assert won.count(True) == 1
    assert runs.get("claim") == b"%d" % won.index(True)
    assert runs.create("claim", b"%d" % won.index(True))  # an answer that was lost, asked for again


def test_a_bucket_that_is_not_there_is_said_by_whoever_reads(s3):
    nowhere = store(s3, "s3://nowhere/runs")
    for read in (lambda: nowhere.list(), lambda: nowhere.get("key"), lambda: nowhere.create("key", b"x")):
        with pytest.raises(NotFound, match="s3://nowhere/runs"):
            read()


def test_a_checkpoint_uri_in_a_bucket_that_is_not_there_is_the_users_fault(s3, tmp_path):
    with pytest.raises(Refused, match=r"checkpoint\.uri: s3://nowhere/runs/run\.json") as caught:
        CheckpointStore(make_job(tmp_path), store(s3, "s3://nowhere/runs")).open()
    assert caught.value.reason == "CheckpointNotFound"


def test_wrong_keys_are_refused_by_the_place_they_were_used_at(s3, tmp_path):
    folder = tmp_path / "wrong"
    folder.mkdir()
    (folder / "AWS_ACCESS_KEY_ID").write_text(s3.access_key)
    (folder / "AWS_SECRET_ACCESS_KEY").write_text("not-the-key")
    endpoint = EndpointConfig(url=s3.endpoint_url, region=s3.region, secret="wrong")
    with pytest.raises(Refused, match=r"s3://runs/key: credentials of Secret 'wrong' .*refused") as caught:
        open_store("s3://runs", endpoint, tmp_path).get("key")
    assert "not-the-key" not in caught.value.message
