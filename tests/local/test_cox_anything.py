"""Drawn command lines, files and damaged work directories: `cox` answers in a sentence, never with a traceback."""

import asyncio
import json
import random
import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from coxswain_cli.__main__ import app
from coxswain_cli.run import LocalRun
from e2e.cluster.access import write_kubeconfig
from tests.children import ReservedPort
from tests.local.jobs import job_objects
from tests.local.test_cox_commands import stored_job
from tests.unit.report_samples import write_run
from tests.unit.test_readers_location import train

ODD = (
    "", "-1", "0", "7", "1e400", "9" * 30, "9" * 5000, "nan", "inf", "1e9", "0x10", "1_0", "٣", "ü", "a b", "a\nb", "\u2028",
    "--", "-x", "[", "{}", "null", "~", "..", "x" * 5000, "\udcff", "%00", "file:a%00b", "s3://",
    "spec.stop.steps=9", "spec.stop.steps=.nan", "spec.checkpoint.uri=file:a%00b", "spec.checkpoint.uri=file:loop/a",
    "spec.checkpoint.uri=file:///a%00b", "metadata.name=ü", "spec.trainers=[[", "/proc/self/mem",
)  # fmt: skip
CLUSTER = ("--kubeconfig", "--context", "--namespace")
OPTIONS = {
    "run": ("--until-step", "--workdir", "--set", "--json", "--retry", "--accept-older-checkpoint", "--nope"),
    "status": ("--json", *CLUSTER),
    "logs": ("--follow", "--trainer", "--loader", "--coordinator", *CLUSTER),
    "validate": ("--json",),
    "report": ("--json", "--steps", "--output", *CLUSTER),
    "scale": CLUSTER,
    "plan step": ("--lengths", "--replicas", "--capacity", "--node-size", "--max-degree", "--speeds", "--balance", "--model",
                  "--hardware", "--output", "--picture", "--beside", "--json"),
    "plan layout": ("--cluster", "--model", "--current", "--horizon", "--rival", "--output", "--json"),
    "plan strategy": ("--lengths", "--devices", "--node-size", "--model", "--hardware", "--capacity", "--context", "--tokens",
                      "--max-degree", "--balance", "--recompute", "--attention", "--copies", "--output", "--policy", "--json"),
    "simulate": ("--generate", "--devices", "--hours", "--seed", "--model", "--hardware", "--rivals", "--action",
                 "--checkpoint", "--restart", "--spares", "--save", "--picture", "--output"),
    "crds": ("--help",),
}  # fmt: skip
WHOLE = {
    "run": ("job.yaml", "--workdir", "Suspended"),
    "validate": ("job.yaml",),
    "report": ("Drawn",),
    "scale": ("Suspended", "2"),
    "plan step": ("--lengths", "lengths", "--replicas", "2", "--capacity", "64", "--output", "plan.json"),
    "plan layout": ("--cluster", "cluster.json", "--model", "llama-7b", "--output", "plan.json"),
    "plan strategy": ("--lengths", "lengths", "--devices", "2", "--model", "llama-7b", "--output", "plan.json"),
    "simulate": ("trace", "--model", "llama-7b", "--rivals", "none", "--output", "plan.json"),
}
"""Command lines without a fault, with files of the folder: an option that is given again counts for the last time."""
FILES = {
    "lengths": "[40, 3, 64, 100]",
    "cluster.json": json.dumps(
        {"nodes": [{"name": "n0", "devices": [{}] * 8}], "global_batch": 8, "hardware": "a100-80g"}
    ),
    "trace": '{"nodes": 1, "devices": 8, "seconds": 60}\n{"t": 9, "component": "n0/1", "kind": "sick", "magnitude": 5}\n',
}
CONTENTS = (
    b"", b"\0", b"\xff\xfe", b"[]", b"{}", b"7", b'"x"', b"null", b"{", b"- a\n- [b", b"1\n2\n3", b"[1, 2", b"a: &a [*a]",
    b"[" * 3000, b'{"a":' * 3000, b'{"step": 1, "x": ' + b"[" * 3000,
    b"9" * 5000, b"\t- a", b"a: .nan", b'a: "\\0"', b"? [a]\n: b", b"a: 1\na: 1", b"\xef\xbb\xbf", "ü: ü".encode("utf-16"),
    b"\xef\xbb\xbf1\r\n2\r\n", b'{"a": "\xff"}', b"[1, NaN, -1, 1e400]", b"!!python/object:os.system {}", b"---\n---\n...\n",
)  # fmt: skip
DOCUMENTS = b"\n---\n"
VALUES = (
    None, [], {}, "x", "", "ü", "\u2028", "\0", "file:a%00b", "file:loop/a", "9" * 400, -1, 0, 1.5, 10**30, 2**63, 1e308,
    float("nan"), True, [None], {"a": []}, {"": {}},
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with a job's file and work directories of jobs that have ended, failed and stopped."""
    folder = tmp_path_factory.mktemp("whole")
    objects = job_objects(f"file://{folder}/corpus", f"file://{folder}/checkpoints")
    job = folder / "job.yaml"
    job.write_bytes(DOCUMENTS.join(json.dumps(o, indent=1).encode() for o in objects))
    for state, status in (("Completed", "True"), ("Failed", "False"), ("Suspended", "Unknown")):
        asyncio.run(stored_job(folder / state, job, state, status))
        (folder / state / "steps.jsonl").write_text('{"step": 0}\n')
        (folder / state / "events.jsonl").write_text('{"reason": "Failed", "message": "x", "time": "now"}\n')
        log = folder / state / "logs/small-trainer-0-0/trainer.log"
        log.parent.mkdir(parents=True)
        log.write_bytes(b"first\n\xff\ntorn")
    write_run(folder / "Drawn", steps=3)
    asyncio.run(train(folder / "run"))
    port = ReservedPort("127.0.0.1")  # it is bound and not listened on: every connection is refused
    write_kubeconfig(folder / "kubeconfig", f"https://127.0.0.1:{port.number}", job, "token")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "loop").symlink_to("loop")
    (folder / "null").symlink_to(
        "/dev/null"
    )  # by its own name, a command that replaces files would take it from the machine
    yield folder
    del port


def damage(draw: random.Random, folder: Path) -> None:
    """One file of the folder is cut, changed, replaced, or a folder, a circle of links or nothing."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    path = folder / "job.yaml" if draw.random() < 0.4 and (folder / "job.yaml").is_file() else draw.choice(files)
    harm = draw.choice(("cut", "bytes", "value", "value", "typed", "other", "folder", "loop", "gone"))
    if harm in ("folder", "loop", "gone"):
        path.unlink()
        if harm == "folder":
            path.mkdir()
        elif harm == "loop":
            path.symlink_to(path.name)
    else:
        how = {"cut": cut, "bytes": changed, "value": revalued, "typed": mistyped, "other": replaced}[harm]
        path.write_bytes(how(draw, path.read_bytes()))


def cut(draw: random.Random, content: bytes) -> bytes:
    return content[: draw.randint(0, len(content))]


def changed(draw: random.Random, content: bytes) -> bytes:
    found = bytearray(content)
    for _ in range(draw.randint(1, 4) if found else 0):
        found[draw.randrange(len(found))] = draw.randrange(256)
    return bytes(found)


def revalued(draw: random.Random, content: bytes) -> bytes:
    """One value of one document, or of one of the lines, is another."""
    between = b"\n" if b"\n{" in content else DOCUMENTS
    documents = content.split(between)
    number = draw.randrange(len(documents))
    try:
        value = yaml.safe_load(documents[number])
    except (yaml.YAMLError, ValueError, RecursionError):
        return content
    place = value
    while isinstance(place, dict | list) and place:
        key = draw.choice(sorted(place, key=str)) if isinstance(place, dict) else draw.randrange(len(place))
        if not isinstance(place[key], dict | list) or draw.random() < 0.3:
            place[key] = draw.choice(VALUES)
            break
        place = place[key]
    documents[number] = json.dumps(value, default=str).encode()
    return between.join(documents)


def mistyped(draw: random.Random, content: bytes) -> bytes:
    """As an editor of another system writes it, or a line twice, or a word of YAML in the place of another."""
    lines = content.splitlines(keepends=True) or [b""]
    place = draw.randrange(len(lines))
    word = draw.choice(
        (b".nan", b"-.inf", b"0x1F", b"1_000", b"yes", b"~", b"2026-01-01", b"*a", b"&a x", b"!!int x", b"'")
    )
    mark, rest = lines[place].partition(b":")[1:]
    typed = {
        "mark": [b"\xef\xbb\xbf", *lines],
        "crlf": [line.replace(b"\n", b"\r\n") for line in lines],
        "tabs": [line.replace(b" ", b"\t") for line in lines],
        "twice": [*lines[: place + 1], *lines[place:]],
        "word": [
            *lines[:place],
            lines[place].replace(mark + rest, b": " + word + b"\n") if mark else word,
            *lines[place + 1 :],
        ],
        "latin": [line.replace(b"a", "ä".encode("latin-1"), 1) for line in lines],
    }
    return b"".join(typed[draw.choice(sorted(typed))])


def replaced(draw: random.Random, _: bytes) -> bytes:
    return draw.choice(CONTENTS)


def command_line(draw: random.Random, folder: Path) -> list[str]:
    command = draw.choice(sorted(OPTIONS))
    names = (
        "job.yaml",
        "Completed",
        "Failed",
        "Suspended",
        "Drawn",
        "kubeconfig",
        "no",
        "odd",
        "loop",
        "loop/in",
        "null",
        *FILES,
    )
    files = [str(folder), *(str(folder / name) for name in names)]
    files += [f"file://{folder}/run/store"] * 3
    if command in WHOLE and draw.random() < 0.7:
        words = [str(folder / word) if (folder / word).exists() else word for word in WHOLE[command]]
    else:
        words = [draw.choice((*files, *files, "-", draw.choice(ODD))) for _ in range(draw.randint(0, 2))]
    for _ in range(draw.randint(0, 3)):
        words.append(draw.choice(OPTIONS[command]))
        if draw.random() < 0.7:
            words.append(draw.choice((*ODD, *files)))
    if command in ("status", "logs", "report", "scale") and draw.random() < 0.2:
        words += ["--kubeconfig", draw.choice((str(folder / "kubeconfig"), *files))]
    return [*command.split(), *words]


@pytest.fixture
def cox(monkeypatch):
    """Runs a command in this process. A job that would run ends before its first pod."""

    async def until_end(run, interrupts):
        return await run.job()

    monkeypatch.setattr(LocalRun, "until_end", until_end)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "no kubeconfig")
    monkeypatch.setenv("HOME", "no home")
    monkeypatch.delenv("KUBECONFIG", raising=False)

    def invoke(words):
        return CliRunner().invoke(app, words, input="kind: Pod")

    return invoke


MANY = [range(first, first + 340) for first in range(60, 2100, 340)]
"""In parts, which workers share: all together took longer than the deadline where others use the processors."""


@pytest.mark.parametrize(
    "seeds",
    [range(60), *(pytest.param(part, marks=pytest.mark.slow) for part in MANY)],
    ids=lambda part: f"from {part[0]}",
)
@pytest.mark.timeout(1200)
def test_no_command_line_and_no_damage_is_answered_with_a_traceback(whole, cox, tmp_path, monkeypatch, seeds):
    monkeypatch.chdir(tmp_path)
    for seed in seeds:
        draw = random.Random(seed)
        folder = tmp_path / f"f{seed}"
        shutil.copytree(whole, folder, symlinks=True)
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
