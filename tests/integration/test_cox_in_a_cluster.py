"""`cox status`, `cox report` and `cox logs` of a job on a real API server, with no more rights than `view` grants."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coxswain_cli.readers.cluster import ClusterReader
from coxswain_operator.kubernetes import find_access
from tests.integration.operator_parts import apply_all, new_namespace
from tests.integration.scene import LOGS, Scene, cox
from tests.unit.test_readers_location import AFTER, BEFORE, EDITED_AT, STEPS

pytestmark = pytest.mark.binaries("helm")

ROOT = Path(__file__).parents[2]
NUMBERS = itertools.count()
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def test_the_status_of_a_job_in_a_cluster_has_its_step_loss_speed_and_pods(scene: Scene) -> None:
    code, said = scene.cox("status", "demo")
    assert code == 0, said
    assert said.startswith("demo: Running\n")
    assert "  step        12/100, loss 4.5678, 19.9 k tokens/s, idle " in said
    assert " left at 20" in said  # when the operator has written it
    for pod, _ in LOGS:
        assert f"  pod         {pod}: Running" in said


def test_without_a_job_every_job_of_the_namespace_is_listed(scene: Scene) -> None:
    assert scene.cox("status") == (0, "demo: Running, step 12/100, loss 4.5678\n")
    empty = new_namespace(scene.api)
    assert cox("status", "--kubeconfig", scene.api.kubeconfig, "--namespace", empty) == (
        0,
        "no jobs in this namespace\n",
    )


def test_programs_get_the_job_and_its_pods(scene: Scene) -> None:
    code, said = scene.cox("status", "demo", "--json")
    found = json.loads(said)
    assert (code, found["job"]["metadata"]["name"], len(found["pods"]), found["progress"]["step"]) == (0, "demo", 4, 12)


@pytest.mark.usefixtures("keys")
def test_the_report_of_a_job_in_a_cluster_has_the_steps_of_its_checkpoint_location(
    scene: Scene, tmp_path: Path
) -> None:
    run = ClusterReader(find_access(scene.viewer), scene.namespace, "demo").record(())
    assert [(s.step, s.loss) for s in run.steps] == [(line["step"], line["loss"]) for line in scene.steps]
    assert [(m.first_step, m.record.weights) for m in run.mixes] == [(0, BEFORE), (EDITED_AT, AFTER)]
    assert {"Validated", "GangStarted"} <= {e.reason for e in run.events}
    page = tmp_path / "r.html"
    code, said = scene.cox("report", "demo", "--output", page)
    assert (code, said.splitlines()[-1]) == (0, str(page)), said
    assert "steps up to the last checkpoint, from s3://runs/demo" in page.read_text()
    assert f"{STEPS:,} of 100" in page.read_text()


def test_a_report_without_rights_to_the_bucket_has_the_rest_and_says_what_is_missing(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    code, said = scene.cox("report", "demo", "--output", tmp_path / "r.html")
    assert (code, "no steps: s3://runs/demo cannot be read from here (" in said) == (0, True), said
    assert "GangStarted" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("options", "origins"),
    [
        ((), {f"{pod}/{container}" for pod, container in LOGS}),
        (("--coordinator",), {"demo-coordinator-0/coordinator"}),
        (("--loader", 0), {"demo-loader-0-0/loader"}),
        (("--trainer", 0), {"demo-trainer-0-0/constructor", "demo-trainer-0-0/trainer"}),
    ],
)
def test_logs_are_those_of_the_chosen_members_each_line_behind_its_origin(
    scene: Scene, options: tuple[Any, ...], origins: set[str]
) -> None:
    code, said = scene.cox("logs", "demo", *options)
    wanted = [f"[{p}/{c}] {line}" for (p, c), lines in LOGS.items() if f"{p}/{c}" in origins for line in lines]
    assert (code, sorted(said.splitlines())) == (0, sorted(wanted))


def test_a_followed_log_has_the_lines_that_come_while_it_is_read(scene: Scene) -> None:
    seen: list[str] = []
    first = threading.Event()
    reader = ClusterReader(find_access(scene.viewer), scene.namespace, "demo")

    def write(origin: str, line: bytes) -> None:
        seen.append(line.decode())
        first.set()

    following = threading.Thread(target=reader.logs, args=("trainer-1", True, write))
    scene.kubelet.ended.clear()
    following.start()
    assert first.wait(60)
    scene.kubelet.logs["demo-trainer-1-0", "trainer"] = ["of the other trainer", "later"]
    scene.kubelet.ended.set()
    following.join(60)
    scene.kubelet.logs |= LOGS
    assert (following.is_alive(), seen) == (False, ["of the other trainer\n", "later\n"])


def test_a_container_that_waits_is_named_behind_the_logs_of_the_others(scene: Scene) -> None:
    scene.kubelet.logs["demo-trainer-0-0", "trainer"] = None
    code, said = scene.cox("logs", "demo", "--trainer", 0)
    scene.kubelet.logs |= LOGS
    first, last = said.splitlines()
    assert (code, first) == (1, "[demo-trainer-0-0/constructor] the constructor's line")
    assert 'container "trainer" in pod "demo-trainer-0-0" is waiting to start: ContainerCreating' in last


def test_a_reader_that_has_seen_enough_ends_the_logs_without_a_word(scene: Scene) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    place = ["--kubeconfig", str(scene.viewer), "--namespace", scene.namespace]
    call = [sys.executable, "-m", "coxswain_cli", "logs", "demo", *place]
    done = subprocess.run(call, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("command", ["status", "report", "logs"])
@pytest.mark.parametrize(
    ("job", "options", "code", "words"),
    [
        ("demo", lambda s, _: ["--kubeconfig", s.stranger, "--namespace", s.namespace], 2, "is forbidden: User"),
        ("other", lambda s, _: ["--kubeconfig", s.viewer, "--namespace", s.namespace], 2, "has no TrainingJob other"),
        ("demo", lambda s, _: ["--kubeconfig", s.viewer, "--context", "prod"], 2, "no context 'prod'; its contexts: coxswain"),
        ("demo", lambda _, f: ["--kubeconfig", f / "absent"], 2, "no kubeconfig there; name a kubeconfig with --kubeconfig"),
    ],
    ids=["forbidden", "no such job", "unknown context", "no kubeconfig"],
)  # fmt: skip
def test_what_cannot_be_read_is_said_in_one_line(
    scene: Scene,
    tmp_path: Path,
    command: str,
    job: str,
    options: Callable[[Scene, Path], list[object]],
    code: int,
    words: str,
) -> None:
    got, said = cox(command, job, *options(scene, tmp_path))
    assert (got, len(said.splitlines()), words in said) == (code, 1, True), said


def test_a_server_that_does_not_answer_is_named_in_one_line(scene: Scene, tmp_path: Path) -> None:
    access = scene.api.access_for(tmp_path / "k", url=f"https://{scene.api.address}:1")
    code, said = cox("status", "demo", "--kubeconfig", access)
    assert (code, len(said.splitlines()), "did not succeed within 5 s" in said) == (1, 1, True), said


def test_logs_of_a_member_without_a_pod_name_the_jobs_state(scene: Scene) -> None:
    code, said = scene.cox("logs", "demo", "--trainer", 7)
    assert (code, said) == (
        1,
        f"cox logs: TrainingJob {scene.namespace}/demo has no pod of trainer-7 now: it is Running\n",
    )
    queued = new_namespace(scene.api)
    apply_all(scene.api, queued)
    code, said = cox("logs", "demo", "--coordinator", "--kubeconfig", scene.api.kubeconfig, "--namespace", queued)
    assert (code, said) == (1, f"cox logs: TrainingJob {queued}/demo has no pod of coordinator now: it is Queued\n")
