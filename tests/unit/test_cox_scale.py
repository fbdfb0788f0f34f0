"""`cox scale` of a work directory: a request that the `cox run` there takes, or one line that says why not."""

from __future__ import annotations

import fcntl
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coxswain.api.validate import defaulted
from coxswain_cli.__main__ import app
from coxswain_cli.readers import cluster
from coxswain_cli.workdir import is_open, request_trainers, taken_request
from tests.api_samples import sample
from tests.unit import report_samples as samples
from tests.unit.test_cox_hints import ApiServer, serving

METADATA = {"name": "demo", "namespace": "default", "uid": "u", "resourceVersion": "1", "generation": 1}


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    samples.write_object(tmp_path, "TrainingJob", "demo", {**defaulted(sample("TrainingJob")), "metadata": METADATA})
    return tmp_path


@contextmanager
def held(workdir: Path) -> Iterator[None]:
    """As by a `cox run`."""
    with (workdir / "cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def scale(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["scale", *map(str, words)])
    return done.exit_code, done.output


def test_a_request_is_left_for_the_run_that_holds_the_folder_and_taken_once(workdir: Path) -> None:
    with held(workdir):
        assert scale(workdir, 6) == (0, "demo: asked for 6 trainers\n")
        assert scale(workdir, 5)[0] == 0  # the last one counts
    assert [taken_request(workdir), taken_request(workdir)] == [5, None]


def test_a_checkpoint_location_is_no_place_for_a_request() -> None:
    code, said = scale("s3://runs/demo/", 3)
    assert (
        code == 2 and "s3://runs/demo/ is a checkpoint location; name a work directory, or a job with --namesp" in said
    )


@pytest.mark.parametrize("option", ["--namespace", "-n", "--context"])
def test_an_empty_name_of_a_place_in_a_cluster_does_not_mean_the_job_of_this_machine(
    workdir: Path, option: str
) -> None:
    """As of a shell's variable that is not set."""
    with held(workdir):
        code, said = scale(workdir, 6, option, "")
    assert code == 2 and "it is empty; give a name, or leave it out" in said
    assert taken_request(workdir) is None


def test_of_two_requests_at_once_one_counts_and_none_fails(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def interrupted(path: Path, text: str) -> int:
        monkeypatch.setattr(Path, "write_text", write)
        written = write(path, text)
        request_trainers(workdir, 7)
        return written

    monkeypatch.setattr(Path, "write_text", interrupted)
    request_trainers(workdir, 5)
    assert [taken_request(workdir), taken_request(workdir)] == [5, None]
    assert not list(workdir.glob(".scale*"))


def test_a_request_that_comes_while_another_is_read_is_taken_next(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes

    def interrupted(path: Path) -> bytes:
        monkeypatch.setattr(Path, "read_bytes", read)
        found = read(path)
        request_trainers(workdir, 7)
        return found

    monkeypatch.setattr(Path, "read_bytes", interrupted)
    request_trainers(workdir, 5)
    assert [taken_request(workdir), taken_request(workdir), taken_request(workdir)] == [5, 7, None]
    assert not list(workdir.glob("*scale*"))


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (9, "count 9 may not be above maxCount 8; lower count, or raise maxCount"),
        (1, "count 1 may not be below minCount 2; raise count, or lower minCount"),
    ],
)
def test_a_number_beyond_its_bounds_is_refused_and_leaves_nothing(workdir: Path, count: int, said: str) -> None:
    with held(workdir):
        code, output = scale(workdir, count)
    assert code == 2 and said in output and taken_request(workdir) is None


def test_another_reader_does_not_hold_a_work_directory(workdir: Path) -> None:
    """Two `cox status` at once."""
    with (workdir / "cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert not is_open(workdir)
    with held(workdir):
        assert is_open(workdir)


def test_a_run_that_has_ended_is_scaled_by_its_command(workdir: Path) -> None:
    code, output = scale(workdir, 6)
    assert code == 2 and "--set spec.trainers.count=6" in output and taken_request(workdir) is None


def test_a_run_that_has_ended_and_could_not_be_scaled_while_it_ran_is_scaled_by_its_command(tmp_path: Path) -> None:
    job = {**defaulted(sample("TrainingJob")), "metadata": METADATA}
    del job["spec"]["trainers"]["minCount"], job["spec"]["trainers"]["maxCount"]
    samples.write_object(tmp_path, "TrainingJob", "demo", job)
    with held(tmp_path):
        assert "only if minCount and maxCount bound it" in scale(tmp_path, 6)[1]
    assert "has ended; repeat the command with --set spec.trainers.count=6" in scale(tmp_path, 6)[1]


def test_a_complete_run_is_scaled_by_its_command_where_there_is_more_to_train(workdir: Path) -> None:
    """Else that command would say that the job is complete."""
    end = {"type": "Succeeded", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": ""}
    job = {**defaulted(sample("TrainingJob")), "metadata": METADATA, "status": {"conditions": [end]}}
    samples.write_object(workdir, "TrainingJob", "demo", job)
    assert "has ended; raise spec.stop, and repeat the command with --set spec.trainers.count=6" in scale(workdir, 6)[1]


def test_a_place_that_holds_no_job_is_refused(tmp_path: Path) -> None:
    assert scale("s3://runs/demo", 2) == (
        2, "cox scale: s3://runs/demo is a checkpoint location; name a work directory, or a job with --namespace\n",
    )  # fmt: skip
    (tmp_path / "cluster").mkdir()
    assert "holds no TrainingJob" in scale(tmp_path, 2)[1]
    assert scale(tmp_path / "nowhere", 2)[0] == 2


@pytest.mark.parametrize("option", ["--kubeconfig", "--context", "--namespace"])
def test_each_option_that_names_a_place_leads_to_the_cluster_there(
    option: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job below runs/ of the same name is not meant."""
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(cluster, "scale", lambda place, job, trainers: asked.append((job, trainers)) or job)
    assert scale(workdir, 3, option, "there") == (0, f"{workdir}\n")
    assert asked == [(str(workdir), 3)]


class Scaling(ApiServer):
    """Takes each number of trainers."""

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, {})


ENDS = {
    "False": "; but the job has failed: to train on with them, `kubectl annotate --kubeconfig {at} --context 'at here' "
    "--namespace team --overwrite tj demo coxswain.dev/retry=VALUE` with another VALUE each time\n",
    "True": "; but the job is complete: to train on with them, raise spec.stop, then `kubectl annotate ",
    "Unknown": "\n",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("succeeded", "said"), ENDS.items())
def test_a_number_that_a_job_of_a_cluster_takes_behind_its_end_is_said_to_wait_for_another_attempt(
    succeeded: str, said: str, tmp_path: Path
) -> None:
    class Open(Scaling):
        def do_GET(self) -> None:
            conditions = [{"type": "Succeeded", "status": succeeded}]
            self._answer(200, {"metadata": {"name": "demo"}, "status": {"conditions": conditions}})

    with serving(Open, tmp_path) as path:
        code, output = scale("demo", 3, "--kubeconfig", path, "--context", "at here", "--namespace", "team")
    assert code == 0 and f": asked for 3 trainers{said.format(at=shlex.quote(str(path)))}" in output


@pytest.mark.timeout(60)
def test_a_user_that_may_scale_a_job_of_a_cluster_and_not_read_it_scales_it(tmp_path: Path) -> None:
    class Reserved(Scaling):
        def do_GET(self) -> None:
            self._answer(
                403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "trainingjobs is forbidden"}
            )

    with serving(Reserved, tmp_path) as path:
        code, output = scale("demo", 3, "--kubeconfig", path, "--context", "at here", "--namespace", "team")
    assert code == 0 and output.endswith(": asked for 3 trainers\n")
