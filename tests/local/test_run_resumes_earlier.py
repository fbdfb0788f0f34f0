"""A run of release 0.1 goes on with the code of today.

`golden/run-0.1.tar.gz` holds such a run: `cox` was killed behind its first checkpoint, and its
plan log was ahead of that. The test unpacks it and repeats the command. The archive names the
run's folder and the server's address as `@FOLDER@` and `@S3@` in the work directory's text files;
the test puts the real ones there. Plan log, checkpoint and index go back byte for byte: none of
them holds a uri.

A block's key holds the ETag of its object. A file's ETag is made of its inode and its time, which
unpacking changes; so the sources lie on an S3 server, where the ETag is the MD5 of the content.
The recorded index is therefore valid as it is, and the test sees that the run writes none of it
again.
"""

import pytest

from tests.local.golden_run import CHECKPOINT, KILLED_AFTER, STEPS, on_s3, unpack
from tests.s3server import S3Server

pytestmark = pytest.mark.timeout(240)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.npz")}


def test_a_run_that_an_earlier_release_began_resumes_from_its_checkpoint_with_the_same_digests(tmp_path):
    with S3Server() as s3:
        whole = unpack(s3, tmp_path)
        log, index = contents(tmp_path / "checkpoints/log"), times(tmp_path / "checkpoints/index")
        run = on_s3(s3, tmp_path)
        before = (tmp_path / "work/steps.jsonl").read_text()
        assert max(run.steps()) >= KILLED_AFTER
        assert max(run.steps()) < STEPS - 1
        assert run.run() == 0, run.output + run.logs()
    assert len(whole) == STEPS
    assert run.digests() == whole
    written = (tmp_path / "work/steps.jsonl").read_text()
    assert written.startswith(before)
    again = [int(line.split(",")[0].removeprefix('{"step":')) for line in written[len(before) :].splitlines()]
    assert again == list(range(CHECKPOINT, STEPS)), "the run goes on from the stored checkpoint"
    assert log.items() <= contents(tmp_path / "checkpoints/log").items(), "the earlier plan log stays as it is"
    assert times(tmp_path / "checkpoints/index") == index, "the recorded index is used as it is"
