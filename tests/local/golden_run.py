"""Begins and packs the run of `tests/local/golden`: `python -m tests.local.golden_run`.

The archive holds the corpus, the work directory, the checkpoint location, and the digests of a
whole run over that corpus. Paths and addresses of the machine stand in its text files as `@FOLDER@` and `@S3@`.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.local.jobs import OPTIMIZER, Object, Run, job_objects, wait_for_step, wait_until, whole_run, write_corpus
from tests.s3server import S3Server

ARCHIVE = Path(__file__).parent / "golden" / "run-0.1.tar.gz"
STEPS, CHECKPOINT, KILLED_AFTER = 12, 3, 4
_MODEL = {"layers": 1, "hidden": 8, "heads": 2, "kvHeads": 1, "feedForward": 16, "vocabulary": 320}
_KEPT = ("corpus", "checkpoints", "work/cluster", "work/events.jsonl", "work/steps.jsonl", "work/timings.jsonl")
_TOKEN = base64.b64encode(b"the token of an earlier run").decode()


def objects(corpus: str, folder: Path) -> list[Object]:
    spec = {"model": {"config": _MODEL}, "optimizer": OPTIMIZER, "stop": {"steps": STEPS}}
    return job_objects(corpus, f"file://{folder}/checkpoints", **spec)


def on_s3(s3: S3Server, folder: Path) -> Run:
    """The run whose sources lie on the server and whose checkpoints lie in the folder."""
    found = objects("s3://corpus", folder)
    for source in (at for at in found if at["kind"] == "DataSource"):
        source["spec"]["endpoint"] = {"url": s3.endpoint_url, "region": s3.region}
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    return Run(folder, found, environment=keys)


def upload(s3: S3Server, corpus: Path) -> None:
    """An ETag of S3 is the MD5 of the content, so the corpus keeps its identity wherever it is uploaded."""
    bucket = s3.bucket("corpus")
    for path in (p for p in corpus.rglob("*") if p.is_file()):
        s3.client().put_object(Bucket=bucket, Key=str(path.relative_to(corpus)), Body=path.read_bytes())


def unpack(s3: S3Server, folder: Path) -> list[tuple[str, str]]:
    """Puts the run into the folder and its corpus onto the server; the digests of the whole run."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    for path in _texts(folder):
        text = path.read_text().replace("@FOLDER@", str(folder)).replace("@S3@", s3.endpoint_url)
        path.write_text(text)
    upload(s3, folder / "corpus")
    return [(stream, delivered) for stream, delivered in json.loads((folder / "digests.json").read_text())]


def _texts(folder: Path) -> list[Path]:
    """Files of the work directory: all are text."""
    return [path for path in (folder / "work").rglob("*") if path.is_file()]


def _begin(s3: S3Server, folder: Path) -> None:
    """Kills `cox` behind the first checkpoint and before the next one, while the plan log is ahead of both."""
    run = on_s3(s3, folder)
    cox = run.start()
    manifests = folder / "checkpoints" / "manifests"
    wait_until(lambda: any(manifests.glob("*.json")), "the first checkpoint", 120)
    wait_for_step(run, cox, KILLED_AFTER)
    os.kill(cox.pid, signal.SIGKILL)
    run.finish(cox)
    found = [path.name for path in manifests.iterdir()]
    assert found == [f"step-{CHECKPOINT:010d}.json"], f"the kill came too late: {found}"


def _strip(s3: S3Server, folder: Path) -> None:
    """Takes out what belongs to this machine, and the job's token."""
    for path in _texts(folder):
        text = path.read_text().replace(str(folder), "@FOLDER@").replace(s3.endpoint_url, "@S3@")
        path.write_text(text)
    for path in (folder / "work/cluster/Secret").rglob("*.json"):
        secret = json.loads(path.read_text())
        secret["data"] = dict.fromkeys(secret["data"], _TOKEN)
        path.write_text(json.dumps(secret, indent=1))
    (folder / "work/cluster/token.key").unlink()


def _pack(folder: Path, digests: list[tuple[str, str]]) -> None:
    (folder / "digests.json").write_text(json.dumps(digests, indent=1) + "\n")
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tarfile.open(ARCHIVE, "w:gz") as archive:
        for name in (*_KEPT, "digests.json"):
            archive.add(folder / name, name, filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names of the user and group of this machine."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main() -> None:
    with tempfile.TemporaryDirectory() as name, S3Server() as s3:
        folder = Path(name) / "run"
        write_corpus(folder / "corpus")
        upload(s3, folder / "corpus")
        _begin(s3, folder)
        whole = whole_run(Path(name) / "whole", objects(f"file://{folder}/corpus", Path(name) / "whole"))
        _strip(s3, folder)
        _pack(folder, whole.digests())
    sys.stdout.write(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
