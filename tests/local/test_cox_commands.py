"""`cox`: what it refuses, what it prints, how it exits. No service is started here."""

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coxswain.api.jobfiles import load_run
from coxswain.errors import Refused
from coxswain.names import ANNOTATION_STOP_AT
from coxswain_cli.__main__ import app
from coxswain_cli.apply import apply
from coxswain_cli.preflight import lock_checkpoints
from coxswain_operator.local import LocalCluster
from tests.local.jobs import job_objects

CONDITION = {"message": "StopReached: at step 8", "lastTransitionTime": "", "observedGeneration": 1}


def cox(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.output


@pytest.fixture
def job_file(tmp_path):
    return write(tmp_path / "job.yaml", job_objects(f"file://{tmp_path}/corpus", f"file://{tmp_path}/checkpoints"))


def write(path: Path, objects) -> Path:
    path.write_text("\n---\n".join(json.dumps(o) for o in objects))
    return path


def refused(job_file, tmp_path, objects):
    code, output = cox("run", write(job_file, objects), "--workdir", tmp_path / "work")
    assert code == 2
    assert not (tmp_path / "work").exists()
    return output


async def stored_job(workdir: Path, job_file: Path, state: str, status: str) -> None:
    """A work directory whose job has ended."""
    async with LocalCluster(workdir) as cluster:
        job = (await apply(cluster, load_run([job_file]))).job
        conditions = [{**CONDITION, "type": "Succeeded", "status": status, "reason": state}]
        restarts = {"counted": 1, "ignored": 2}
        await cluster.patch_status(
            "TrainingJob",
            "default",
            job["metadata"]["name"],
            {"conditions": conditions, "restarts": restarts, "lastCheckpoint": {"step": 8, "uri": "", "time": ""}},
            "",
        )


def test_help_imports_nothing_heavy():
    heavy = "{'torch', 'pyarrow', 'aiohttp', 'httpx', 'pydantic', 'msgspec', 'coxswain_operator', 'coxswain_cli.run'}"
    check = "import sys; from coxswain_cli.__main__ import app; app(['--help'], standalone_mode=False);"
    check += f"sys.exit(bool({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert all(command in done.stdout for command in ("run", "status", "validate", "report", "crds", "plan"))


def test_every_command_explains_itself():
    for command in (["run"], ["status"], ["validate"], ["report"], ["crds"], ["plan", "step"]):
        code, output = cox(*command, "--help")
        assert code == 0, output
        assert "Usage: " in output


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run", "Exit code 0: Succeeded, or stopped as asked. 1: Failed. 2: refused. 130: stopped at once."),
        ("validate", "Exit code 0, or 2 with faults."), ("plan step", "exit code 2 if it cannot be planned"),
        ("crds", "for `kubectl apply --server-side --filename -`"),
    ],
)  # fmt: skip
def test_the_help_of_a_command_says_more_than_the_list_of_commands(command, said):
    """What a script needs, the exit codes above all, stands there."""
    _, output = cox(*command.split(), "--help")
    assert said in " ".join(output.split())


@pytest.mark.parametrize(("command", "taken"), [("status", 1), ("report", 1), ("logs", 0), ("scale", 0)])
def test_the_help_of_a_command_names_a_checkpoint_location_only_where_it_is_taken(command, taken):
    _, output = cox(command, "--help")
    assert output.count("checkpoint.uri") == taken


def test_the_version_is_printed():
    code, output = cox("--version")
    assert (code, output.startswith("cox ")) == (0, True)


def test_malformed_yaml_is_refused_with_its_place(job_file, tmp_path):
    job_file.write_text("kind: [TrainingJob\n")
    code, output = cox("run", job_file, "--workdir", tmp_path / "work")
    assert (code, "malformed YAML at line" in output) == (2, True)


def test_a_file_that_does_not_exist_is_refused_by_name(tmp_path):
    _, output = cox("run", tmp_path / "nowhere.yaml")
    assert output.splitlines()[1].startswith(f"  {tmp_path}/nowhere.yaml: cannot read")


def test_all_faults_of_a_file_are_reported_at_once(job_file, tmp_path):
    objects = job_objects("file:///c", "file:///k", colour="red", stop={"steps": 1, "tokens": 2})
    output = refused(job_file, tmp_path, objects)
    assert "spec.colour" in output
    assert "exactly one of" in output


def test_a_source_that_is_not_in_the_files_is_refused_by_name(job_file, tmp_path):
    output = refused(job_file, tmp_path, job_objects("file:///c", "file:///k")[1:])
    assert "'code'" in output


def test_a_run_has_exactly_one_training_job(job_file, tmp_path):
    output = refused(job_file, tmp_path, job_objects("file:///c", "file:///k")[:-1])
    assert "the files hold 0 (none)" in output


async def test_a_finished_job_prints_its_end_and_exits_by_it(job_file, tmp_path):
    for state, status, expected in (("Completed", "True", 0), ("Failed", "False", 1)):
        workdir = tmp_path / state
        await stored_job(workdir, job_file, state, status)
        done = run_cox("run", job_file, "--workdir", workdir)
        assert (done.returncode, f"small: {state}" in done.stdout) == (expected, True), done.stdout
        assert "nothing is trained" in done.stdout


async def test_scripts_get_the_end_of_a_run_as_the_last_line(job_file, tmp_path):
    await stored_job(tmp_path / "work", job_file, "Failed", "False")
    done = run_cox("run", job_file, "--workdir", tmp_path / "work", "--json")
    end = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, end["type"], end["exit_code"], end["state"], end["job"]) == (
        1,
        "end",
        1,
        "Failed",
        "small",
    )
    assert end["message"] == CONDITION["message"]


def test_a_refusal_is_json_on_standard_output_and_text_on_standard_error(job_file, tmp_path):
    job_file.write_text("kind: Pod\n")
    done = run_cox("run", job_file, "--workdir", tmp_path / "work", "--json")
    end = json.loads(done.stdout)
    assert (done.returncode, end["exit_code"], end["state"]) == (2, 2, "Invalid")
    assert "unknown kind 'Pod'" in end["message"]
    assert "unknown kind 'Pod'" in done.stderr


def test_validate_and_plan_speak_json_too(job_file, tmp_path):
    done = run_cox("validate", job_file, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    lengths = tmp_path / "lengths"
    lengths.write_text("512\n512\n")
    plan = run_cox("plan", "step", "--lengths", lengths, "--replicas", "2", "--capacity", "1024", "--json")
    assert (plan.returncode, plan.stderr) == (0, "")
    assert json.loads(plan.stdout)["replicas"] == 2


async def test_a_changed_field_of_the_stream_is_refused_by_name(job_file, tmp_path):
    await stored_job(tmp_path / "work", job_file, "Suspended", "Unknown")
    objects = job_objects(f"file://{tmp_path}/corpus", f"file://{tmp_path}/checkpoints", seed=2)
    done = run_cox("run", write(job_file, objects), "--workdir", tmp_path / "work")
    assert done.returncode == 2
    assert "TrainingJob small: spec.seed" in done.stderr
    assert "another --workdir" in done.stderr


def named(tmp_path, name):
    objects = job_objects(f"file://{tmp_path}/corpus", f"file://{tmp_path}/{name}")
    objects[-1]["metadata"]["name"] = name
    return write(tmp_path / f"{name}.yaml", objects)


def test_a_file_that_suspends_its_job_is_refused_with_the_way_out_and_the_way_out_holds(
    job_file, tmp_path, monkeypatch
):
    objects = job_objects(f"file://{tmp_path}/corpus", f"file://{tmp_path}/checkpoints")
    objects[-1]["spec"]["suspend"] = True
    said = refused(job_file, tmp_path, objects)
    assert "TrainingJob small: spec.suspend: true: " in said
    way_out = re.search(r"give (--set \S+)$", said).group(1)
    monkeypatch.setattr("coxswain_cli.run.run", not_run)
    assert cox("run", job_file, "--workdir", tmp_path / "work", *way_out.split()) == (0, "")


def test_a_file_that_stops_its_job_at_a_step_is_refused_with_the_way_out_and_the_way_out_holds(
    job_file, tmp_path, monkeypatch
):
    objects = job_objects(f"file://{tmp_path}/corpus", f"file://{tmp_path}/checkpoints")
    objects[-1]["metadata"]["annotations"] = {ANNOTATION_STOP_AT: "7"}
    said = refused(job_file, tmp_path, objects)
    assert (
        "TrainingJob small: metadata.annotations: coxswain.dev/stop-at-step is set by `cox run --until-step N`" in said
    )
    del objects[-1]["metadata"]["annotations"]
    monkeypatch.setattr("coxswain_cli.run.run", not_run)
    way_out = ("run", write(job_file, objects), "--workdir", tmp_path / "work", "--until-step", 7)
    assert "take it out" in said and cox(*way_out) == (0, "")


async def not_run(*_):
    """Once nothing was refused."""
    return 0


async def test_a_second_job_in_a_work_directory_is_refused_and_leaves_it_as_it_was(job_file, tmp_path):
    await stored_job(tmp_path / "work", job_file, "Suspended", "Unknown")
    before = {path: path.read_bytes() for path in (tmp_path / "work/cluster").rglob("*.json")}
    done = run_cox("run", named(tmp_path, "other"), "--workdir", tmp_path / "work")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"cox run: {tmp_path}/work holds TrainingJob small, not other; choose another --workdir\n"
    assert {path: path.read_bytes() for path in (tmp_path / "work/cluster").rglob("*.json")} == before


async def test_two_jobs_that_an_earlier_release_admitted_to_a_work_directory_go_on(job_file, tmp_path):
    async with LocalCluster(tmp_path / "work") as cluster:
        for name in ("small", "other"):
            await cluster.create(job_objects("file:///c", "file:///k")[-1] | {"metadata": {"name": name}})
        for name in ("small", "other"):
            objects = load_run([named(tmp_path, name)])
            assert (await apply(cluster, objects)).job["metadata"]["name"] == name


async def test_a_workdir_in_use_is_refused(job_file, tmp_path):
    async with LocalCluster(tmp_path / "work"):
        done = run_cox("run", job_file, "--workdir", tmp_path / "work")
    assert done.returncode == 2
    assert f"in use by another run (process {os.getpid()})" in done.stderr


async def test_status_prints_what_a_job_does_and_as_json_everything(job_file, tmp_path):
    await stored_job(tmp_path / "work", job_file, "Completed", "True")
    done = run_cox("status", tmp_path / "work")
    assert "small: Completed" in done.stdout
    assert "1 counted, 2 ignored" in done.stdout
    assert json.loads(run_cox("status", tmp_path / "work", "--json").stdout)["job"]["metadata"]["name"] == "small"


def test_status_of_an_unknown_job_names_the_folders_searched(tmp_path):
    code, output = cox("status", tmp_path / "nothing")
    assert (code, "neither a work directory nor a job below runs/" in output) == (2, True)


def test_a_location_of_another_kind_is_refused_with_those_that_there_are():
    code, output = cox("status", "gs://bucket/run")
    assert code == 2
    assert "'gs://bucket/run' is no checkpoint location: allowed are s3://bucket/prefix and file:///folder" in output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["status"], "-n is neither a work directory"), (["report"], "-n is neither a work directory"),
        (["logs", "--follow"], "-n is neither a work directory"), (["scale"], "-n is neither a work directory"),
        (["validate"], "cannot read the file"), (["run"], "cannot read the file"),
    ],
)  # fmt: skip
def test_a_name_behind_two_dashes_is_no_option(command, words):
    """`-n` would be `--namespace`."""
    code, output = cox(*command, "--", "-n", *(["2"] if command == ["scale"] else []))
    assert code == 2
    assert words in output.replace("'", "")


def run_cox(*arguments):
    """As a process: an event loop runs here already."""
    command = [sys.executable, "-m", "coxswain_cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def run_in_shell(script, *arguments):
    """`"$@"` in the script is the command."""
    command = [sys.executable, "-m", "coxswain_cli", *map(str, arguments)]
    return subprocess.run(["sh", "-c", script, "sh", *command], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_command_runs_with_standard_streams_that_are_closed(job_file, tmp_path, closed):
    """A traceback was all that came of it, and the next file that was opened would have been standard output."""
    assert run_in_shell(f'exec "$@" {closed}', "validate", job_file).returncode == 0
    assert run_in_shell(f'exec "$@" {closed}', "status", tmp_path / "none").returncode == 2


def test_a_standard_error_that_takes_nothing_changes_neither_the_exit_code_nor_the_output(job_file, tmp_path):
    """What waited for standard output was thrown away with it, and a refusal ended as what may pass."""
    (tmp_path / "lengths").write_text("100\n200\n")
    (tmp_path / "empty.yaml").write_text("")

    def without_words(*arguments):
        return run_in_shell('exec "$@" 2>/dev/full', *arguments)

    assert without_words("validate", tmp_path / "empty.yaml").returncode == 2
    assert without_words("status", tmp_path / "none").returncode == 2
    assert without_words("status", "--no-such-option").returncode == 2
    step = without_words("plan", "step", "--lengths", tmp_path / "lengths", "--replicas", 2, "--capacity", 1024)
    assert (step.returncode, json.loads(step.stdout)["replicas"]) == (0, 2)
    ended = run_in_shell('exec "$@" 2>&1 >/dev/null | true', "validate", tmp_path / "empty.yaml")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_current_directory_that_was_deleted_is_named(tmp_path):
    (tmp_path / "gone").mkdir()
    done = run_in_shell(f'cd "{tmp_path}/gone"; rmdir "{tmp_path}/gone"; exec "$@"', "validate", "a.yaml")
    assert (done.returncode, done.stderr) == (2, "cox: the current directory was deleted; change to one that exists\n")


def test_a_place_that_cannot_be_a_work_directory_is_refused(job_file, tmp_path):
    done = run_cox("run", job_file, "--workdir", job_file)
    assert (done.returncode, "choose another --workdir" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


@pytest.mark.parametrize(
    ("trouble", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "stopped at once"),
        (OSError(28, "No space left on device"), 1, "No space left on device; repair that"),
    ],
)
def test_what_happens_before_the_job_runs_has_an_exit_code_too(job_file, monkeypatch, trouble, code, words):
    def fail(files, settings):
        raise trouble

    monkeypatch.setattr("coxswain_cli.run.load_run", fail)
    found, output = cox("run", job_file)
    assert (found, words in output) == (code, True)


def test_help_takes_little_cpu_time():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run_cox("--help").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime <= 0.4


def test_a_volume_of_kubernetes_is_refused_by_every_field_that_names_one(job_file, tmp_path):
    output = refused(job_file, tmp_path, job_objects("pvc://data/corpus", "pvc://runs/demo"))
    assert "DataSource code: spec.uri: pvc://data/corpus/code: `cox run` has no volumes of Kubernetes" in output
    assert "TrainingJob small: spec.checkpoint.uri: pvc://runs/demo: " in output
    assert "use file:///folder or s3://bucket/prefix" in output


def test_a_folder_of_checkpoints_that_cannot_be_one_is_refused_by_its_uri(job_file, tmp_path):
    objects = job_objects(f"file://{tmp_path}/corpus", f"file://{job_file}")
    done = run_cox("run", write(job_file, objects), "--workdir", tmp_path / "work")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert f"checkpoint.uri file://{job_file}: File exists; give this user the right to write there" in done.stderr


def test_a_folder_of_checkpoints_with_a_nul_in_its_name_is_refused_by_its_uri(tmp_path):
    with (
        pytest.raises(Refused, match=rf"checkpoint.uri file://{tmp_path}/a%00b: .*null"),
        lock_checkpoints({"spec": {"checkpoint": {"uri": f"file://{tmp_path}/a%00b"}}}),
    ):
        pass


def test_two_runs_on_one_machine_never_share_a_folder_of_checkpoints(job_file, tmp_path):
    job = job_objects(f"file://{tmp_path}/corpus", f"file://{tmp_path}/checkpoints")[-1]
    with lock_checkpoints(job):
        done = run_cox("run", job_file, "--workdir", tmp_path / "work")
        assert done.returncode == 2
        assert f"checkpoint.uri file://{tmp_path}/checkpoints is in use by another run on this machine" in done.stderr
    with lock_checkpoints(job), lock_checkpoints({"spec": {"checkpoint": {"uri": "s3://runs/demo"}}}):
        pass
