"""`cox status`, `cox run` and `cox report` on a work directory that is damaged, or whose `cox` was killed."""

import json
import os
import random
import subprocess
import sys

import msgspec
import pytest

from coxswain_cli.readers.folder import FolderReader
from coxswain_cli.status import describe
from coxswain_operator.local import LocalCluster
from tests.local.jobs import job_objects
from tests.local.test_cox_commands import run_cox, stored_job, write
from tests.local.test_cox_display import step

CUTS = (b"", b"[]", b"{}", b"null", b"7", b'"x"', b"{", b"\xff\xfe", b'{"kind": "TrainingJob", "metadata": []}')


@pytest.fixture
async def workdir(tmp_path):
    """With a job that has ended and a pod of it."""
    objects = job_objects(f"file://{tmp_path}/corpus", f"file://{tmp_path}/checkpoints")
    await stored_job(tmp_path / "work", write(tmp_path / "job.yaml", objects), "Completed", "True")
    (tmp_path / "work/steps.jsonl").write_text("")
    log = tmp_path / "work/logs/small-loader-0-0/loader.log"
    log.parent.mkdir(parents=True)
    log.write_text("a line\n")
    return tmp_path / "work"


def damaged_objects(workdir):
    """The job's file in every damaged form: torn, of another type, with one value replaced by another type."""
    path = workdir / "cluster/TrainingJob/default/small.json"
    whole = path.read_bytes()
    yield from ((path, cut) for cut in (*CUTS, whole[: len(whole) // 2]))
    for part in ("metadata", "spec", "status"):
        for wrong in (None, [], "x", 7, {"conditions": 5}, {"lastCheckpoint": {"step": "x"}}):
            yield path, json.dumps({**json.loads(whole), part: wrong}).encode()


def answers_in_a_sentence(*arguments):
    done = run_cox(*arguments)
    assert "Traceback" not in done.stderr + done.stdout, (arguments, done.stderr)
    assert done.returncode in (0, 1, 2)
    return done


async def test_a_damaged_object_is_named_by_its_path_and_never_shown_as_a_traceback(workdir):
    for path, content in random.Random(3).sample(list(damaged_objects(workdir)), 4):
        path.write_bytes(content)
        done = answers_in_a_sentence("status", workdir)
        assert done.returncode == 0 or str(path) in done.stderr, content


@pytest.mark.slow
async def test_no_damaged_object_is_a_traceback_in_any_command(workdir):
    for path, content in damaged_objects(workdir):
        path.write_bytes(content)
        for command in (("status", workdir), ("run", workdir.parent / "job.yaml", "--workdir", workdir)):
            done = answers_in_a_sentence(*command)
            assert done.returncode == 0 or str(path) in done.stderr, content


async def test_damaged_lines_of_steps_and_events_are_left_out(workdir):
    for name in ("steps.jsonl", "events.jsonl"):
        (workdir / name).write_bytes(b"{\n[]\n\xff\n7\n" + b'{"reason": 5}\n' + b"\n" * 3)
    for command in (("status", workdir), ("run", workdir.parent / "job.yaml", "--workdir", workdir)):
        assert answers_in_a_sentence(*command).returncode == 0


@pytest.mark.parametrize("command", ["status", "logs", "report", "validate", "run"])
async def test_an_output_that_cannot_be_written_is_named_and_one_that_is_closed_needs_no_words(workdir, command):
    file = workdir.parent / "job.yaml"
    what = {"status": [workdir], "logs": [workdir], "report": [workdir, "--json"], "validate": [file]}.get(
        command, [file, "--workdir", workdir]
    )
    full = os.open("/dev/full", os.O_WRONLY)
    done = written_to(full, command, *what)
    os.close(full)
    assert done.returncode in (1, 130)
    assert "No space left on device" in done.stderr
    assert "standard output" in done.stderr
    reader, writer = os.pipe()
    os.close(reader)
    done = written_to(writer, command, *what)
    os.close(writer)
    assert done.returncode in (1, 130)


def written_to(stdout, *arguments, **environment):
    """What `cox` says on standard error when its standard output goes there."""
    call = [sys.executable, "-m", "coxswain_cli", *map(str, arguments)]
    env = {**os.environ, **environment}
    done = subprocess.run(call, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, env=env)
    assert "Traceback" not in done.stderr
    return done


def test_a_path_of_any_letters_is_printed_on_a_terminal_of_any_encoding(tmp_path):
    folder = tmp_path / "Über 文"
    folder.mkdir()
    path = folder / "job.yaml"
    path.write_text("kind: Pod")
    done = written_to(subprocess.DEVNULL, "validate", path, PYTHONIOENCODING="ascii")
    assert (done.returncode, "\\u6587/job.yaml" in done.stderr) == (2, True)


async def test_steps_that_the_status_does_not_have_yet_are_read_from_the_file_of_steps(workdir):
    assert FolderReader(workdir).look().progress is None
    (workdir / "steps.jsonl").write_bytes(msgspec.json.encode(step(2, loss=1.5)) + b"\n")
    assert "  step        3, loss 1.5000" in list(describe(FolderReader(workdir).look()))


async def test_a_running_cluster_is_known_by_its_lock(workdir):
    assert not FolderReader(workdir).look().running
    async with LocalCluster(workdir):
        assert FolderReader(workdir).look().running
