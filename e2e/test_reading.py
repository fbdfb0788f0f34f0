"""`kubectl get`, `describe`, `logs`, `port-forward` and `scale` show what the pages say that they
show.
"""

from __future__ import annotations

import re
import shlex
import sys
import urllib.request
from pathlib import Path

import pytest

from e2e.cluster.namespaces import run
from e2e.cluster.process import REPOSITORY, Child, binary
from e2e.doc_commands import command
from e2e.job import SLOW, Digests, Job, completed, training

pytestmark = pytest.mark.timeout(900)

PAGE = "docs/operations.md"
CONDITIONS = (
    "Succeeded",
    "Validated",
    "DataReady",
    "PodsReady",
    "Progressing",
    "Degraded",
    "Suspended",
    "CheckpointFresh",
)
EVENTS = ("Validated", "IndexingStarted", "GangStarted", "TrainingStarted", "CheckpointSaved")


def typed(job: Job, beginning: str, *further: str) -> str:
    """What the page's command shows of this job."""
    words = shlex.split(command(PAGE, beginning).replace("NAME", job.name))
    return job.kubectl(*words[1:], *further)


def columns(kind: str, wide: bool = False) -> list[str]:
    """As the kind's own page lists them."""
    (line,) = re.findall(
        r"^`kubectl get \w+` shows .*$", (REPOSITORY / f"docs/reference/{kind}.md").read_text(), re.MULTILINE
    )
    narrow, _, more = line.partition("with `-o wide`")
    return ["NAME", *re.findall(r"([A-Z/]+) \(", narrow + more if wide else narrow)]


def row(table: str) -> dict[str, str]:
    """Of a table with one object, by column."""
    head, values = table.splitlines()
    starts = [match.start() for match in re.finditer(r"\S+", head)]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    return {head[start:end].strip(): values[start:end].strip() for start, end in spans}


def test_kubectl_shows_of_a_job_that_trains_what_the_pages_say(job: Job, baseline: Digests, tmp_path: Path) -> None:
    training(job, model=SLOW)
    job.wait_for_event("CheckpointSaved", "")  # behind its status, which may come later than the steps' lines
    table = typed(job, "kubectl get tj")
    assert list(row(table)) == columns("trainingjob")
    assert {name: row(table)[name] for name in ("STATE", "READY", "RESTARTS")} == {
        "STATE": "Running", "READY": "2/2", "RESTARTS": "0",
    }  # fmt: skip
    wide = row(typed(job, "kubectl get tj", "-o", "wide"))
    assert list(wide) == columns("trainingjob", wide=True)
    assert (wide["MIX"], float(wide["LOSS"]) > 0, int(wide["CHECKPOINT"]) >= 4) == ("code-and-docs", True, True)
    described(job)
    logged(job)
    page(job, tmp_path)
    followed = follow(job, tmp_path / "followed.log")
    with pytest.raises(RuntimeError, match=r"trainers\.count may change while the job runs only if"):
        job.kubectl(*shlex.split(command(PAGE, "kubectl scale tj").replace("NAME", job.name).replace(" N", " 99"))[1:])
    completed(job, baseline, 0, 0)
    end = row(typed(job, "kubectl get tj"))
    assert (end["STATE"], end["STEP"], end["PROGRESS"]) == ("Completed", str(len(baseline)), "100.0")
    assert "Completed" in typed(job, "kubectl describe tj NAME")
    shown_by_cox(job, len(baseline))
    assert followed.process.wait(60) == 0
    assert sorted((tmp_path / "followed.log").read_text().splitlines()) == sorted(lines_of(job, "trainer", "0"))


def cox_command(job: Job, *arguments: str) -> list[str]:
    place = ("--kubeconfig", str(job.site.cluster.kubeconfig), "--namespace", job.namespace)
    return [sys.executable, "-m", "coxswain_cli", *arguments, *place]


def cox(job: Job, *arguments: str) -> str:
    return run(cox_command(job, *arguments), deadline=60)


def follow(job: Job, log: Path) -> Child:
    """`cox logs --follow` of a trainer, until its containers end."""
    return Child(cox_command(job, "logs", job.name, "--follow", "--trainer", "0"), log)


def lines_of(job: Job, role: str, index: str) -> list[str]:
    """The logs of the member's pod as kubectl prints them, in the form of `cox logs`."""
    (pod,) = [p for p in job.pods(role) if p["metadata"]["labels"]["coxswain.dev/index"] == index]
    name = pod["metadata"]["name"]
    containers = [c["name"] for key in ("initContainers", "containers") for c in pod["spec"].get(key, ())]
    texts = {c: job.kubectl("logs", name, "--container", c).splitlines() for c in containers}
    return [f"[{name}/{c}] {line}" for c, lines in texts.items() for line in lines]


def shown_by_cox(job: Job, steps: int) -> None:
    """Of a job that has ended: status, logs, and what its checkpoint location records."""
    status = cox(job, "status", job.name)
    assert status.startswith(f"{job.name}: Completed\n"), status
    assert f"  step        {steps}/{steps}, loss " in status
    for role, options in (("loader", ("--loader", "0")), ("trainer", ("--trainer", "0"))):
        assert sorted(cox(job, "logs", job.name, *options).splitlines()) == sorted(lines_of(job, role, "0"))
    location = (job.site.store / "runs" / job.place).as_uri()
    stored = run([sys.executable, "-m", "coxswain_cli", "status", location], deadline=60)
    assert stored.startswith(f"{job.name}: Stored\n"), stored
    assert f"  checkpoint  before step {steps}, " in stored


def described(job: Job) -> None:
    text = typed(job, "kubectl describe tj NAME")
    missing = [word for word in CONDITIONS if not re.search(rf"^\s+Type:\s+{word}$", text, re.MULTILINE)]
    assert missing == [], text
    assert [word for word in EVENTS if not re.search(rf"^\s+Normal\s+{word}\s", text, re.MULTILINE)] == [], text
    sources = job.kubectl("get", "datasources", "stdlib-code")
    assert list(row(sources)) == columns("datasource")
    assert (row(sources)["READY"], int(row(sources)["DOCUMENTS"]) > 100) == ("True", True)
    listed = job.kubectl("get", "training", "-o", "name").split()
    assert len(listed) == 5, listed


def logged(job: Job) -> None:
    line = command(PAGE, "kubectl logs --selector")
    assert "role=trainer" in line
    for role, words in (("trainer", "constructor"), ("loader", "loader")):  # a coordinator reports by events
        lines = shlex.split(line.replace("NAME", job.name).replace("role=trainer", f"role={role}"))
        text = job.kubectl(*lines[1:], "--prefix", "--tail=5")
        assert text.strip() and words in text, f"{role}: {text}"


def page(job: Job, folder: Path) -> None:
    """The coordinator's, by the page's own command but for a port that is surely free here."""
    line = command(PAGE, "kubectl port-forward").replace("NAME", job.name).replace(" 7400", " :7400")
    options: list[str | Path] = ["--kubeconfig", job.site.cluster.kubeconfig, "--namespace", job.namespace]
    log = folder / "port-forward.log"
    child = Child([binary("kubectl"), *options, *shlex.split(line)[1:]], log)
    try:
        child.wait_until(lambda: "Forwarding from 127.0.0.1" in log.read_text())
        (port,) = re.findall(r"127\.0\.0\.1:(\d+) ->", log.read_text())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
            text = answer.read().decode()
    finally:
        child.stop()
    assert "<html" in text and job.name in text
