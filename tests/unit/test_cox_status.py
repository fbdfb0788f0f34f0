"""What `cox status` says of pods and progress, from the same values wherever they were read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coxswain.config import PhaseConfig
from coxswain.membership.mix_record import MixRecord
from coxswain_cli.__main__ import app
from coxswain_cli.readers.cluster import containers_of, seen
from coxswain_cli.readers.values import Progress, Seen, reported, stored
from coxswain_cli.reporting.model import MixInForce
from coxswain_cli.status import brief, describe
from tests.unit import report_samples as samples
from tests.unit.fake_cluster import report

Manifest = dict[str, Any]

JOB: Manifest = {"metadata": {"name": "demo"}, "status": {}}
UNPLACED = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient cpu."}


def pod(phase: str, *containers: Manifest, **status: Any) -> Manifest:
    return {
        "metadata": {"name": "demo-trainer-0-0"},
        "status": {"phase": phase, "containerStatuses": containers, **status},
    }


def container(ready: bool, **state: Any) -> Manifest:
    return {"name": "trainer", "ready": ready, "state": state}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (pod("Running", container(True)), "Running"),
        (pod("Running", container(False)), "Running, not ready: trainer"),
        (
            pod("Pending", container(False, waiting={"reason": "ImagePullBackOff"})),
            "Pending, not ready: trainer (ImagePullBackOff)",
        ),
        (pod("Pending", conditions=[UNPLACED]), "Pending 0/3 nodes are available: 3 Insufficient cpu."),
        (pod("Failed", container(False, terminated={"exitCode": 137})), "Failed (exit codes: trainer 137)"),
        (pod("Failed", message="Pod was evicted"), "Failed Pod was evicted"),
        ({"metadata": {"name": "demo-trainer-0-0"}}, "Pending"),
        (
            pod("Pending", container(False), initContainerStatuses=[{"name": "constructor", "ready": False}]),
            "Pending, not ready: constructor, trainer",
        ),
        (pod("Running", container(False, terminated={"exitCode": 1})), "Running, not ready: trainer"),  # starts again
        (pod("Succeeded", container(False, terminated={"exitCode": 0})), "Succeeded (exit codes: trainer 0)"),
        (pod("Running", container(True), conditions=[{**UNPLACED, "status": "True"}]), "Running"),
    ],
)
def test_a_pod_says_its_phase_and_why_it_does_not_work(found: Manifest, said: str) -> None:
    assert list(describe(Seen(JOB, "Running", pods=[found])))[-1] == f"  pod         demo-trainer-0-0: {said}"


@pytest.mark.parametrize(
    ("phase", "said"), [("Running", "gone, with its `cox run`"), ("Succeeded", "Succeeded"), ("Failed", "Failed")]
)
def test_a_pod_whose_cox_run_has_ended_is_gone_unless_it_had_ended_itself(phase: str, said: str) -> None:
    assert list(describe(Seen(JOB, "not running", pods=[pod(phase)], running=False)))[-1].endswith(f"-0-0: {said}")


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (Progress(3), "3"),
        (Progress(3, 40, 4.56784), "3/40, loss 4.5678"),
        (Progress(3, 40, None, 1234.0, 0.125, 75.0), "3/40, 1.2 k tokens/s, idle 12.5%, 1 m 15 s left"),
        (Progress(3, 40, note="when last seen"), "3/40 when last seen"),
    ],
)
def test_progress_shows_what_is_known_of_it(progress: Progress, said: str) -> None:
    assert f"  step        {said}" in list(describe(Seen(JOB, "Running", progress=progress)))


def test_a_slow_trainer_is_named_and_without_one_the_line_is_absent() -> None:
    words = "trainer-1 (node-b) computes 2.1 x as long as the median for the same work"
    assert f"  slow        {words}" in list(describe(Seen(JOB, "Running", report=report(slow=words))))
    assert not any("slow" in line for line in describe(Seen(JOB, "Running", report=report())))


def test_slow_devices_of_a_status_are_lines_of_their_own_and_not_said_twice() -> None:
    slow = {"trainer": "trainer-1", "device": 2, "slowdown": "2.00", "since": "T", "cause": "Device"}
    status = {"stragglers": [{**slow, "node": "node-b", "action": "rebalanced"}, {**slow, "device": 3}]}
    said = list(describe(Seen({**JOB, "status": status}, "Running", report=report(slow="trainer-1"))))
    assert [line for line in said if "slow" in line] == [
        "  slow        trainer-1 (node-b) device 2: 2.00 times as long as planned since T (Device): rebalanced",
        "  slow        trainer-1 device 3: 2.00 times as long as planned since T (Device)",
    ]


def test_the_texts_of_a_status_become_numbers_and_what_is_no_number_is_unknown() -> None:
    status = {"step": 3, "steps": 40, "loss": "4.5", "tokensPerSecond": "", "idlePercent": "12.5", "etaSeconds": 75}
    assert stored({"progress": status}) == Progress(3, 40, 4.5, None, 0.125, 75)
    assert stored({}) is None


def test_a_coordinator_that_has_closed_no_step_reports_no_rate_and_no_time_left() -> None:
    """Its zeros are unknown numbers: after a restart a job of hours would have `0 s left`."""
    nothing = {"loss": None, "tokens_per_second": 0.0, "idle_fraction": 0.0, "eta_seconds": 0}
    assert reported(report("Starting", step=10, **nothing)) == Progress(10, 100)
    assert reported(report(step=10)) == Progress(10, 100, 2.5, 1000.0, 0.05, 60)


@pytest.mark.parametrize(
    ("type_", "status", "rates"),
    [
        ("Succeeded", "Unknown", (20.0, 0.125, 75)),
        ("Succeeded", "False", (None,) * 3),
        ("Succeeded", "True", (None,) * 3),
        ("Suspended", "True", (None,) * 3),
    ],
)
def test_a_job_of_a_cluster_that_stands_still_has_no_rate_and_no_time_left(
    type_: str, status: str, rates: tuple[float | None, ...]
) -> None:
    done = {
        "step": 3, "steps": 40, "loss": "4.5", "tokensPerSecond": "20", "idlePercent": "12.5", "etaSeconds": 75,
    }  # fmt: skip
    conditions = [{"type": type_, "status": status, "reason": "R"}]
    found = seen({**JOB, "status": {"progress": done, "conditions": conditions}}, []).progress
    assert found == Progress(3, 40, 4.5, *rates)


def test_logs_of_a_pod_are_those_of_its_sidecars_and_containers_and_not_of_what_has_ended_before_them() -> None:
    before, sidecar = {"name": "unpack"}, {"name": "constructor", "restartPolicy": "Always"}
    assert containers_of({"spec": {"initContainers": [before, sidecar], "containers": [{"name": "trainer"}]}}) == [
        "constructor",
        "trainer",
    ]


def test_a_line_of_the_list_has_the_state_and_how_far_the_job_is() -> None:
    assert brief(Seen(JOB, "Queued")) == "demo: Queued"
    assert brief(Seen(JOB, "Running", progress=Progress(3, 40, 4.5))) == "demo: Running, step 3/40, loss 4.5000"


def test_of_jobs_of_one_name_below_runs_the_list_says_where_each_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    metadata = {"name": "demo", "namespace": "default", "uid": "u", "resourceVersion": "1", "generation": 1}
    for folder in ("demo", "my second"):
        samples.write_object(tmp_path / "runs" / folder, "TrainingJob", "demo", {"metadata": metadata})
    listed = CliRunner().invoke(app, ["status"]).output.splitlines()
    assert listed == ["demo: not running", "demo in 'runs/my second': not running"]


def test_without_a_job_every_work_directory_below_runs_is_listed_also_one_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["status"]).output == "no jobs below runs/\n"
    samples.write_object(tmp_path / "runs/torn", "TrainingJob", "torn", {})
    metadata = {"name": "whole", "namespace": "default", "uid": "u", "resourceVersion": "1", "generation": 1}
    samples.write_object(tmp_path / "runs/whole", "TrainingJob", "whole", {"metadata": metadata})
    torn, whole = CliRunner().invoke(app, ["status"]).output.splitlines()
    assert torn.startswith("torn: cannot be read: runs/torn/cluster/TrainingJob/default/torn.json")
    assert whole == "whole: not running"
    (tmp_path / "runs/whole/steps.jsonl").mkdir()
    assert "whole: cannot be read: [Errno 21] Is a directory" in CliRunner().invoke(app, ["status"]).output


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_file_that_cannot_be_read_is_named_with_the_way_out_and_code_2(tmp_path: Path, command: str) -> None:
    metadata = {"name": "demo", "namespace": "default", "uid": "u", "resourceVersion": "1", "generation": 1}
    samples.write_object(tmp_path, "TrainingJob", "demo", {"metadata": metadata})
    (tmp_path / "steps.jsonl").mkdir()
    done = CliRunner().invoke(app, [command, str(tmp_path)])
    way_out = "repair that, or repeat this as the user that ran the job"
    said = f"cox {command}: {tmp_path}/steps.jsonl: Is a directory; {way_out}\n"
    assert (done.exit_code, done.output) == (2, said)


def test_what_this_user_may_not_read_is_no_empty_folder(tmp_path: Path) -> None:
    """In a process that has no right of root's to pass over rights."""
    bare = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    command = [*bare, sys.executable, "-m", "coxswain_cli", "status"]
    closed = [tmp_path / "runs/mine/cluster", tmp_path / "runs/theirs", tmp_path / "runs"]
    for name in ("mine", "theirs"):
        samples.write_object(tmp_path / "runs" / name, "TrainingJob", name, {})
    said = []
    for count in (2, 3):
        for folder in closed[:count]:
            folder.chmod(0)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        said += [done.returncode, *(done.stdout + done.stderr).splitlines()]
        for folder in reversed(closed):
            folder.chmod(0o700)
    way_out = "repeat this as the user that ran the job, or repair that"
    assert said == [
        0,
        f"mine: cannot be read: runs/mine/cluster cannot be read (Permission denied); {way_out}",
        f"theirs: cannot be read: runs/theirs/cluster cannot be read (Permission denied); {way_out}",
        2,
        f"cox status: runs cannot be listed (Permission denied); {way_out}",
    ]


def test_a_strategy_is_shown_with_predicted_and_measured_seconds_and_what_else_there_was() -> None:
    other = {"layout": "1 x tp1pp2", "predictedStepSeconds": "0.750"}
    status = {
        "strategy": {"layout": "2 x tp1pp1", "predictedStepSeconds": "0.500", "alternatives": [other]},
        "progress": {"stepSeconds": "0.613"},
    }
    said = list(describe(Seen({**JOB, "status": status}, "Running")))
    assert "  strategy    2 x tp1pp1: 0.500 s a step predicted, 0.613 s measured" in said
    assert "  or          1 x tp1pp2: 0.750 s a step predicted" in said
    assert not any("strategy" in line for line in describe(Seen(JOB, "Running")))


def test_of_conditions_only_what_is_wrong_is_said() -> None:
    wrong = [
        {"type": "Degraded", "status": "True", "reason": "CapacityLost", "message": "3 of 4"},
        {"type": "Validated", "status": "False", "reason": "MixNotFound", "message": "DataMix mix"},
    ]
    turned = [{**c, "status": "False" if c["status"] == "True" else "True"} for c in wrong]
    said = list(describe(Seen({**JOB, "status": {"conditions": wrong}}, "Running")))
    assert said == ["demo: Running", "  degraded    CapacityLost: 3 of 4", "  validated   MixNotFound: DataMix mix"]
    assert list(describe(Seen({**JOB, "status": {"conditions": turned}}, "Running"))) == ["demo: Running"]


def test_restarts_the_layout_and_the_checkpoint_are_lines_with_each_of_their_numbers() -> None:
    kept = {"step": 10, "uri": "file:///r", "time": "T", "kept": [4, 8], "tokens": 1234, "streamDigest": "ab"}
    layout = {"hash": "h", "summary": "2 x tp1pp1"}
    status = {"restarts": {"counted": 1, "ignored": 2}, "layout": layout, "worldGeneration": 4, "lastCheckpoint": kept}
    assert list(describe(Seen({**JOB, "status": status}, "Running"))) == [
        "demo: Running",
        "  layout      2 x tp1pp1, world generation 4",
        "  checkpoint  before step 10, file:///r, saved T",
        "  kept        before step 4, 8",
        "  tokens      1.2 k before that checkpoint, stream digest ab",
        "  restarts    1 counted, 2 ignored",
    ]


def test_a_mix_is_said_from_each_step_or_token_on_the_first_of_all_steps_included() -> None:
    phases = (
        PhaseConfig(from_step=0, weights={"code": 2, "docs": 1}),
        PhaseConfig(from_tokens=500, weights={"code": 1, "docs": 3}),
    )
    mix = MixInForce(0, MixRecord(0, {"code": 1, "docs": 1}, {}, phases))
    assert list(describe(Seen(JOB, "Running", mixes=(mix,))))[-1] == (
        "  mix         from step 0: code 1, docs 1; from step 0: code 2, docs 1; from token 500: code 1, docs 3"
    )


def test_pods_are_in_the_order_of_their_names() -> None:
    pods = [{**pod("Running"), "metadata": {"name": name}} for name in ("b", "a", "c")]
    said = list(describe(Seen(JOB, "Running", pods=pods)))[1:]
    assert said == [f"  pod         {name}: Running" for name in "abc"]
