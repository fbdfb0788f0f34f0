"""One process and all services give the same stream: both digests of every step of a real run."""

import copy
import pickle
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from coxswain.digests import STREAM_SEED
from coxswain_train.dataset import StreamDataset, stream_digest
from tests.local.jobs import STEPS, write_objects
from tests.local.one_process import stream_of
from tests.s3server import S3Server

pytestmark = pytest.mark.timeout(240)

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_torch.py"


@pytest.mark.parametrize("world", [1, 3])
def test_one_process_gives_both_digests_of_the_distributed_run(tmp_path, baseline, world):
    found = stream_of(baseline.objects, tmp_path, world)
    assert len(found) == STEPS
    assert found == baseline.digests()


@pytest.mark.binaries("versitygw")
@pytest.mark.parametrize("slash", ["", "/"])
def test_an_index_at_the_jobs_own_location_in_a_bucket_is_kept_on_the_server_that_the_job_names(
    tmp_path, baseline, monkeypatch, slash
):
    """With this user's keys, or those of the Secret that the job names."""
    with S3Server() as s3:
        s3.bucket("runs")
        objects = copy.deepcopy(baseline.objects)
        endpoint = {"url": s3.endpoint_url, "region": s3.region, "secretRef": {"name": "s3"}}
        objects[-1]["spec"]["checkpoint"] |= {"uri": "s3://runs/demo/", "endpoint": endpoint}
        file = write_objects(tmp_path / "job.yaml", objects)
        with_secret = StreamDataset.of_files([file], f"s3://runs/demo{slash}", secrets_dir=s3.secrets_dir)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
        with_own_keys = StreamDataset.of_files([file], f"s3://runs/demo{slash}")
        assert (s3.data / "runs" / "demo" / "index").is_dir()
        for dataset in (with_secret, pickle.loads(pickle.dumps(with_own_keys))):
            step = next(iter(dataset))
            assert stream_digest(STREAM_SEED, [step]) == baseline.digests()[0][0]


@pytest.fixture
def job(tmp_path, baseline):
    return write_objects(tmp_path / "job.yaml", baseline.objects)


def losses(printed):
    return re.findall(r"loss (\S+) tokens \d+ digest (\w+)", printed)


def run_here(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *map(str, arguments)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_the_plain_loop_learns_from_that_stream_and_goes_on_exactly_where_it_stopped(
    tmp_path, job, baseline, monkeypatch, capsys
):
    """In another process: the first one is this."""
    arguments = [str(job), "--folder", str(tmp_path / "stopped ü 1%"), "--steps"]
    run_here(monkeypatch, *arguments, 2)
    first = losses(capsys.readouterr().out)
    command = [sys.executable, str(EXAMPLE), *arguments, "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = first + losses(done.stdout)
    assert [digest for _, digest in found] == [stream for stream, _ in baseline.digests()[:4]]
    assert float(found[-1][0]) < float(found[0][0])


def test_the_plain_loop_refuses_a_missing_file_and_a_damaged_checkpoint_in_a_sentence(tmp_path, job, monkeypatch):
    (tmp_path / "checkpoint.pt").write_bytes(b"PK torn")
    for file, words in (
        (tmp_path / "no.yaml", "no.yaml: cannot read the file"),
        (job, "checkpoint.pt is no checkpoint of this program"),
    ):
        with pytest.raises(SystemExit, match=words):
            run_here(monkeypatch, file, "--folder", tmp_path)
