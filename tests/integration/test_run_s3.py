"""Jobs whose sources, plan log, index and checkpoints all lie on a real S3 server."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme

from coxswain.config import EndpointConfig
from coxswain.errors import Refused
from coxswain.names import ENV_INCARNATION, ENV_STORE_PATIENCE
from coxswain_coordinator.checkpoint.claim import Claim, LiveRun
from coxswain_coordinator.checkpoint.store import CheckpointStore
from coxswain_coordinator.store_executor import StoreExecutor
from coxswain_link.store import BucketNotFound, Store, StoreUnavailable, open_store
from tests.faults import Refuse, every
from tests.local.failures import note
from tests.local.jobs import Object, Run, job_objects, wait_for_step, wait_until, write_corpus
from tests.local.one_process import stream_of
from tests.s3proxy import S3Proxy, any_call, drawn, lost, nothing
from tests.s3server import S3Server
from tests.sts import TokenService
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
        fill(server, corpus)
        yield server


def fill(server: S3Server, corpus: Path) -> None:
    server.bucket("runs")
    bucket = server.bucket("corpus")
    for path in sorted(p for p in corpus.rglob("*") if p.is_file()):
        server.client().put_object(Bucket=bucket, Key=str(path.relative_to(corpus)), Body=path.read_bytes())


def store(s3: S3Server, uri: str) -> Store:
    return open_store(uri, EndpointConfig(url=s3.endpoint_url, region=s3.region, secret="s3"), s3.secrets_dir)


def objects_on(url: str, run: str, **keys: Object) -> list[Object]:
    """The small job on the server at this url; `keys` may be the endpoints' secretRef."""
    endpoint = {"url": url, "region": S3Server.region, **keys}
    objects = job_objects("s3://corpus", f"s3://runs/{run}", trainers=1, stop={"steps": STEPS})
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


@pytest.fixture(scope="module")
def baseline(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """The digests of the job on files, and of more steps than the others do, as one process reads them."""
    folder = tmp_path_factory.mktemp("files")
    return stream_of(
        job_objects(f"file://{corpus}", f"file://{folder}/runs", trainers=1, stop={"steps": 5 * STEPS}), folder
    )


def holders(run: Run, *secrets: str) -> list[str]:
    """Where one of these stands in what a run printed or wrote; only the object and the mount of a
    Secret may hold it.
    """
    files = [
        p for p in run.workdir.rglob("*") if p.is_file() and "secret" not in str(p.relative_to(run.workdir)).lower()
    ]
    texts = {"output": run.output.encode()} | {str(p.relative_to(run.workdir)): p.read_bytes() for p in files}
    spelled = [form for s in secrets for form in (s.encode(), base64.b64encode(s.encode()))]
    return [where for where, text in texts.items() if any(form in text for form in spelled)]


def condition(run: Run, type_: str) -> Object:
    """A condition of the job in its work directory, as the operator wrote it last."""
    for path in run.workdir.rglob("small.json"):
        try:
            found = json.loads(path.read_text())
        except (ValueError, OSError):  # it is being replaced
            continue
        if found.get("kind") == "TrainingJob":
            conditions = found.get("status", {}).get("conditions", [])
            return next((c for c in conditions if c["type"] == type_), {})
    return {}


async def test_of_two_claims_on_one_bucket_the_second_is_refused_while_the_first_is_renewed(s3):
    runs = [LiveRun("default/demo", uid, "demo-coordinator-0", f"host-{uid}") for uid in ("a", "b")]
    first, second = (Claim(store(s3, "s3://runs/claims"), run, renew=0.05) for run in runs)
    assert await first.acquire(StoreExecutor()) is False
    with pytest.raises(Refused, match=r"in use by the run of default/demo \(uid a, demo-coordinator-0 on host-a\)"):
        await second.acquire(StoreExecutor())
    await second.release()
    await first.release()
    assert store(s3, "s3://runs/claims").list("live/") == []


@pytest.mark.slow
def test_two_live_runs_never_share_a_location_and_the_second_names_the_first(tmp_path, s3):
    objects = objects_on(s3.endpoint_url, "shared")
    objects[-1]["spec"]["stop"] = {"steps": 5000}
    first, second = (Run(tmp_path / name, objects, keys_in_environment(s3)) for name in "ab")
    cox = first.start()
    try:
        wait_for_step(first, cox, 1)
        assert second.run() == 1, second.output
    finally:
        cox.send_signal(signal.SIGTERM)
        first.finish(cox)
    said = " ".join(second.output.split())
    assert "CheckpointInUse: checkpoint.uri s3://runs/shared is in use by the run of default/small (uid " in said
    assert f"small-coordinator-0 on {socket.gethostname()}, {first.workdir}" in said
    assert not second.steps()
    assert (cox.returncode, {line["worldGeneration"] for line in first.steps().values()}) == (0, {1})
    assert s3.client().list_objects_v2(Bucket="runs", Prefix="shared/live/").get("Contents", []) == []


def test_a_run_on_s3_goes_on_from_its_checkpoint_with_the_digests_of_files(tmp_path, s3, baseline):
    by_environment = Run(tmp_path / "one", objects_on(s3.endpoint_url, "one"), keys_in_environment(s3))
    assert by_environment.run("--until-step", str(HALF)) == 0, by_environment.output + by_environment.logs()
    by_secret = Run(tmp_path / "two", [secret(s3), *objects_on(s3.endpoint_url, "one", secretRef={"name": "store"})])
    assert by_secret.run() == 0, by_secret.output + by_secret.logs()
    assert (max(by_environment.steps()), min(by_secret.steps())) == (HALF - 1, HALF)
    joined = by_environment.steps() | by_secret.steps()
    digests = [(joined[k]["stream_digest"], joined[k]["delivered_digest"]) for k in sorted(joined)]
    assert digests == baseline[:STEPS]
    assert [holders(run, s3.secret_key) for run in (by_environment, by_secret)] == [[], []]


def test_a_run_behind_faults_and_without_its_bucket_for_a_while_loses_nothing(tmp_path, s3, baseline):
    """Sources, index, plan log, checkpoints and the export, while one call in ten goes wrong."""
    with S3Proxy(s3) as proxy:
        proxy.plan = drawn(1, 0.1)
        run = Run(tmp_path, objects_on(proxy.endpoint_url, "faults"), keys_in_environment(s3))
        cox = run.start()
        wait_for_step(run, cox, 1)
        proxy.plan = lost("runs")
        said = store_away(run)
        proxy.plan = drawn(2, 0.1)
        assert run.finish(cox) == 0, run.output + run.logs()
        assert run.digests() == baseline[:STEPS]
        assert re.match(r"retrying: s3://runs/faults/.*: there is no such bucket", said["message"]), said
        assert {event for event in run.events() if "Restart" in event} == set()
        exported = export(proxy, "faults", s3, tmp_path / "behind.safetensors")
    assert export(s3, "faults", s3, tmp_path / "direct.safetensors") == exported
    assert proxy.befallen["Corrupt"] >= 3 and len(+proxy.befallen) >= 4, proxy.befallen


def store_away(run: Run) -> Object:
    """The job's condition once it waits for the store."""
    what = "Degraded names the store that the job waits for"
    wait_until(lambda: condition(run, "Degraded").get("reason") == "StoreAway", what, 40)
    said = condition(run, "Degraded")
    note(f"Degraded, StoreAway: {said['message']}")
    return said


def export(server: S3Server | S3Proxy, run: str, s3: S3Server, output: Path) -> bytes:
    """The weights of the newest checkpoint, by the command that people use."""
    environment = {**os.environ, **keys_in_environment(s3), "AWS_ENDPOINT_URL_S3": server.endpoint_url}
    command = [sys.executable, "-m", "coxswain_train.checkpoint.export", f"s3://runs/{run}", str(output)]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return output.read_bytes()


@pytest.mark.slow
def test_a_bucket_that_is_missing_for_15_seconds_costs_a_pause(tmp_path, s3, baseline):
    with S3Proxy(s3) as proxy:
        objects = objects_on(proxy.endpoint_url, "pause")
        objects[-1]["spec"]["stop"] = {
            "steps": 300
        }  # more than the plan log runs ahead, so plans are still to be written
        objects[-1]["spec"]["checkpoint"]["everySteps"] = 60
        run = Run(tmp_path, objects, keys_in_environment(s3))
        cox = run.start()
        wait_for_step(run, cox, 2)
        proxy.plan = lost("runs")
        store_away(run)
        away = time.monotonic()
        wait_until(lambda: time.monotonic() - away > 15, "a quarter of a minute")
        assert cox.poll() is None
        proxy.plan = nothing
        assert run.finish(cox) == 0, run.output + run.logs()
    assert run.digests()[:STEPS] == baseline[:STEPS]
    assert not [event for event in run.events() if event in ("WorkerRestarted", "Restarting", "Failed")]


ENDS = {
    "the bucket of the checkpoints": (lost("runs"), r"s3://runs/\S+: there is no such bucket"),
    "the bucket of the sources": (lost("corpus"), r"s3://corpus/\S+: there is no such bucket"),
    "the server": (every(1, any_call, Refuse(503)), r"s3://\S+: the server answers 503 Service Unavailable"),
    "the keys": (every(1, any_call, Refuse(403)), r"AccessDenied.*s3://\S+: credentials of Secret 'store' "),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "words"), ENDS.values(), ids=ENDS.keys())
def test_what_stays_lost_ends_the_run_by_name_and_the_next_run_goes_on(tmp_path, s3, baseline, request, plan, words):
    name = request.node.callspec.id.replace(" ", "-")
    with S3Proxy(s3) as proxy:
        objects = [secret(s3), *objects_on(proxy.endpoint_url, name, secretRef={"name": "store"})]
        objects[-1]["spec"] |= {"failurePolicy": {"maxRestarts": 0}, "stop": {"steps": 400}}
        run = Run(tmp_path / "one", objects, {ENV_STORE_PATIENCE: "3"})
        cox = run.start()
        wait_for_step(run, cox, HALF)
        checkpoints = store(s3, f"s3://runs/{name}")
        wait_until(lambda: checkpoints.list("manifests/"), "a checkpoint to resume from")
        proxy.plan = plan
        assert run.finish(cox) == 1, run.output + run.logs()
        assert re.search(words, " ".join(run.output.split())), run.output + run.logs()
        proxy.plan = nothing
        newest = max(int(re.findall(r"\d+", o.path)[-1]) for o in checkpoints.list("manifests/"))
        objects[-1]["spec"]["stop"] = {"steps": newest + 3}
        again = Run(tmp_path / "two", objects)
        assert again.run() == 0, again.output + again.logs()
    assert min(again.steps()) == newest
    assert again.steps()[newest]["stream_digest"] == baseline[newest][0]
    assert holders(run, s3.secret_key) == []


@pytest.mark.slow
def test_a_run_by_web_identity_leaves_neither_keys_nor_tokens_anywhere(tmp_path, s3, baseline):
    identity = tmp_path / "identity"
    identity.write_text("coxswain-test-identity")
    with TokenService("coxswain-test-identity", s3.access_key, s3.secret_key) as tokens:
        role = {"AWS_ROLE_ARN": "arn:aws:iam::1:role/trainer", "AWS_WEB_IDENTITY_TOKEN_FILE": str(identity)}
        run = Run(tmp_path, objects_on(s3.endpoint_url, "web"), {**role, "AWS_ENDPOINT_URL_STS": tokens.url})
        assert run.run() == 0, run.output + run.logs()
    assert run.digests() == baseline[:STEPS]
    assert holders(run, s3.secret_key, "coxswain-test-identity") == []


@pytest.mark.slow
def test_a_run_on_a_server_of_a_private_authority_needs_no_more_than_its_ca_crt_in_the_secret(
    corpus, tmp_path, baseline
):
    authority = trustme.CA()
    with S3Server(authority) as private:
        fill(private, corpus)
        keys = secret(private)
        keys["stringData"]["ca.crt"] = authority.cert_pem.bytes().decode()
        objects = [keys, *objects_on(private.endpoint_url, "private", secretRef={"name": "store"})]
        run = Run(tmp_path, objects)
        assert run.run() == 0, run.output + run.logs()
        assert run.digests() == baseline[:STEPS]
        del keys["stringData"]["ca.crt"]
        without = Run(tmp_path / "without", objects)
        assert without.run() == 1
    assert "the server's certificate is signed by an authority that is not known here" in " ".join(
        without.output.split()
    )


def test_of_many_claims_at_once_on_s3_exactly_one_wins(s3):
    runs = store(s3, "s3://runs/claims")
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda i: runs.create("claim", b"%d" % i), range(16)))
    assert won.count(True) == 1
    assert runs.get("claim") == b"%d" % won.index(True)
    assert runs.create("claim", b"%d" % won.index(True))  # an answer that was lost, asked for again


def test_the_first_read_names_a_bucket_that_is_not_there(s3):
    nowhere = store(s3, "s3://nowhere/runs")
    for read in (lambda: nowhere.list(), lambda: nowhere.get("key"), lambda: nowhere.create("key", b"x")):
        with pytest.raises(BucketNotFound, match=r"s3://nowhere/runs.*: there is no such bucket"):
            read()


def test_a_checkpoint_uri_in_a_bucket_that_is_not_there_is_the_users_fault(s3, tmp_path):
    with pytest.raises(Refused, match=r"checkpoint\.uri: s3://nowhere/runs/run\.json") as caught:
        CheckpointStore(make_job(tmp_path), store(s3, "s3://nowhere/runs")).open()
    assert caught.value.reason == "CheckpointNotFound"


def test_a_coordinator_that_replaces_another_one_treats_a_missing_bucket_as_an_outage(s3, tmp_path, monkeypatch):
    monkeypatch.setenv(ENV_INCARNATION, "1")
    monkeypatch.setenv(ENV_STORE_PATIENCE, "0.1")
    with pytest.raises(StoreUnavailable, match=r"s3://nowhere/runs/run\.json: there is no such bucket"):
        CheckpointStore(make_job(tmp_path), store(s3, "s3://nowhere/runs")).open()


def test_wrong_keys_are_refused_by_the_place_they_were_used_at(s3, tmp_path):
    folder = tmp_path / "wrong"
    folder.mkdir()
    (folder / "AWS_ACCESS_KEY_ID").write_text(s3.access_key)
    (folder / "AWS_SECRET_ACCESS_KEY").write_text("not-the-key")
    endpoint = EndpointConfig(url=s3.endpoint_url, region=s3.region, secret="wrong")
    with pytest.raises(Refused, match=r"s3://runs/key: credentials of Secret 'wrong' .*refused") as caught:
        open_store("s3://runs", endpoint, tmp_path).get("key")
    assert "not-the-key" not in caught.value.message
