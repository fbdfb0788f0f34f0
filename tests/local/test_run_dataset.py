"""One process and all services give the same stream: both digests of every step of a real run."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from coxswain.digests import STREAM_SEED
from coxswain_train.dataset import StreamDataset, stream_digest
from tests.local.jobs import STEPS

pytestmark = pytest.mark.timeout(240)

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_torch.py"


def job_file(run):
    path = run.folder / "job-for-one-process.yaml"
    path.write_text("\n---\n".join(json.dumps(o) for o in run.objects))
    return path


@pytest.mark.parametrize("world", [1, 3])
def test_one_process_gives_both_digests_of_the_distributed_run(tmp_path, baseline, world):
    ranks = [
        StreamDataset.of_files([job_file(baseline)], tmp_path.as_uri(), rank=rank, world=world) for rank in range(world)
    ]
    digest, found = STREAM_SEED, []
    for parts in zip(*ranks, strict=True):
        digest = stream_digest(digest, parts)
        found.append((digest, f"{sum(p.delivered_digest for p in parts) % 2**64:016x}"))
    assert len(found) == STEPS
    assert found == baseline.digests()


def plain(job, folder, steps):
    command = [sys.executable, str(EXAMPLE), str(job), "--steps", str(steps), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return re.findall(r"loss (\S+) tokens \d+ digest (\w+)", done.stdout)


def test_the_plain_loop_learns_from_that_stream_and_goes_on_exactly_where_it_stopped(tmp_path, baseline):
    job = job_file(baseline)
    first = plain(job, tmp_path / "stopped ü 1%", 2)
    second = plain(job, tmp_path / "stopped ü 1%", 4)
    found = first + second
    assert [digest for _, digest in found] == [stream for stream, _ in baseline.digests()[:4]]
    assert float(found[-1][0]) < float(found[0][0])


def test_the_plain_loop_refuses_a_missing_file_and_a_damaged_checkpoint_in_a_sentence(tmp_path, baseline, monkeypatch):
    (tmp_path / "checkpoint.pt").write_bytes(b"PK torn")
    for job, words in (
        (tmp_path / "no.yaml", "no.yaml: cannot read the file"),
        (job_file(baseline), "checkpoint.pt is no checkpoint of this program"),
    ):
        monkeypatch.setattr(sys, "argv", ["plain_torch.py", str(job), "--folder", str(tmp_path)])
        with pytest.raises(SystemExit, match=words):
            runpy.run_path(str(EXAMPLE), run_name="__main__")
