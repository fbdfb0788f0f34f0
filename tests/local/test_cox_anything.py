"""Drawn command lines, files and damaged work directories: `cox` answers in a sentence, never with a traceback."""

import asyncio
import json
import random
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coxswain_cli.__main__ import app
from coxswain_cli.run import LocalRun
from e2e.cluster.access import write_kubeconfig
from tests.children import ReservedPort
from tests.local.jobs import job_objects
from tests.local.test_cox_commands import stored_job, write
from tests.unit.test_readers_location import train

ODD = (
    "",
    "-1",
    "0",
    "7",
    "1e400",
    "9" * 30,
    "nan",
    "ü",
    "a b",
    "--",
    "-x",
    "[",
    "{}",
    "null",
    "spec.stop.steps=9",
    "\ud800",
)
CLUSTER = ("--kubeconfig", "--context", "--namespace")
OPTIONS = {
    "run": ("--until-step", "--workdir", "--set", "--json", "--retry", "--accept-older-checkpoint", "--nope"),
    "status": ("--json", *CLUSTER),
    "logs": ("--follow", "--trainer", "--loader", "--coordinator", *CLUSTER),
    "validate": ("--json",),
    "report": ("--json", "--steps", "--output", *CLUSTER),
    "plan step": ("--lengths", "--replicas", "--capacity", "--node-size", "--max-degree", "--speeds", "--balance", "--model",
                  "--hardware", "--output", "--json"),
    "crds": ("--help",),
}  # fmt: skip
CONTENTS = (
    b"",
    b"\0",
    b"\xff\xfe",
    b"[]",
    b"{}",
    b"7",
    b'"x"',
    b"null",
    b"{",
    b"- a\n- [b",
    b"1\n2\n3",
    b"[1, 2",
    b"a: &a [*a]",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with a job's file and work directories of jobs that have ended, failed and stopped."""
    folder = tmp_path_factory.mktemp("whole")
    job = write(folder / "job.yaml", job_objects(f"file://{folder}/corpus", f"file://{folder}/checkpoints"))
    for state, status in (("Completed", "True"), ("Failed", "False"), ("Suspended", "Unknown")):
        asyncio.run(stored_job(folder / state, job, state, status))
        (folder / state / "steps.jsonl").write_text('{"step": 0}\n')
        (folder / state / "events.jsonl").write_text('{"reason": "Failed", "message": "x", "time": "now"}\n')
        log = folder / state / "logs/small-trainer-0-0/trainer.log"
        log.parent.mkdir(parents=True)
        log.write_bytes(b"first\n\xff\ntorn")
    asyncio.run(train(folder / "run"))
    port = ReservedPort("127.0.0.1")  # it is bound and not listened on: every connection is refused
    write_kubeconfig(folder / "kubeconfig", f"https://127.0.0.1:{port.number}", job, "token")
    yield folder
    del port


def damage(draw: random.Random, folder: Path) -> None:
    """One file of the folder is cut, changed, replaced, or a folder or nothing."""
    path = draw.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
    content = path.read_bytes()
    harm = draw.choice(("cut", "bytes", "value", "other", "folder", "gone", "whole"))
    if harm in ("folder", "gone"):
        path.unlink()
        if harm == "folder":
            path.mkdir()
    elif harm != "whole":
        path.write_bytes({"cut": cut, "bytes": changed, "value": revalued, "other": replaced}[harm](draw, content))


def cut(draw: random.Random, content: bytes) -> bytes:
    return content[: draw.randint(0, len(content))]


def changed(draw: random.Random, content: bytes) -> bytes:
    found = bytearray(content)
    for _ in range(draw.randint(1, 4) if found else 0):
        found[draw.randrange(len(found))] = draw.randrange(256)
    return bytes(found)


def revalued(draw: random.Random, content: bytes) -> bytes:
    """One value of a JSON document is another type."""
    try:
        value = json.loads(content)
    except ValueError:
        return content
    place = value
    while isinstance(place, dict | list) and place:
        key = draw.choice(sorted(place)) if isinstance(place, dict) else draw.randrange(len(place))
        if not isinstance(place[key], dict | list) or draw.random() < 0.3:
            place[key] = draw.choice((None, [], {}, "x", -1, 1.5, True, [None], {"a": []}))
            break
        place = place[key]
    return json.dumps(value).encode()


def replaced(draw: random.Random, _: bytes) -> bytes:
    return draw.choice(CONTENTS)


def command_line(draw: random.Random, folder: Path) -> list[str]:
    command = draw.choice(sorted(OPTIONS))
    files = [
        str(folder / name) for name in ("job.yaml", "Completed", "Failed", "Suspended", "kubeconfig", "no", "odd", ".")
    ]
    files += [f"file://{folder}/run/store"] * 3
    words = command.split() + [draw.choice((*files, *files, "-", draw.choice(ODD))) for _ in range(draw.randint(0, 2))]
    if command == "run" and draw.random() < 0.7:
        words = ["run", files[0], "--workdir", draw.choice(files[1:])]
    for _ in range(draw.randint(0, 3)):
        words.append(draw.choice(OPTIONS[command]))
        if draw.random() < 0.7:
            words.append(draw.choice((*ODD, *files)))
    if command in ("status", "logs", "report") and draw.random() < 0.2:
        words += ["--kubeconfig", draw.choice((str(folder / "kubeconfig"), *files))]
    return words


@pytest.fixture
def cox(monkeypatch):
    """Runs a command in this process. A job that would run ends before its first pod."""

    async def until_end(run, interrupts):
        return await run._job()

    monkeypatch.setattr(LocalRun, "until_end", until_end)
    monkeypatch.setattr("coxswain_operator.local.cluster.LOCK_SECONDS", 0.0)
    monkeypatch.setattr("coxswain_cli.readers.cluster._DEADLINE", 0.01)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "no kubeconfig")

    def invoke(words):
        return CliRunner().invoke(app, words, input="kind: Pod")

    return invoke


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 2100), marks=pytest.mark.slow)], ids=["some", "many"]
)
@pytest.mark.timeout(1200)
def test_no_command_line_and_no_damage_is_answered_with_a_traceback(whole, cox, tmp_path, monkeypatch, seeds):
    monkeypatch.chdir(tmp_path)
    for seed in seeds:
        draw = random.Random(seed)
        folder = tmp_path / f"f{seed}"
        shutil.copytree(whole, folder)
        (folder / "odd").write_bytes(draw.choice(CONTENTS))
        for _ in range(draw.randint(0, 3)):
            damage(draw, folder)
        words = command_line(draw, folder)
        done = cox(words)
        said = SystemExit, OSError  # `main` turns an OSError into a sentence
        assert done.exception is None or isinstance(done.exception, said), (seed, words, done.exc_info)
        assert done.exit_code in (0, 1, 2, 130), (seed, words)
        assert "Traceback" not in done.output, (seed, words, done.output)
        shutil.rmtree(folder)
