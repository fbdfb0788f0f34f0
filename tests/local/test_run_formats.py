"""Whole runs over the formats that other tests read block by block: what is trained on is what the files hold."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tests.local.jobs import STEPS, Run, job_objects, source
from tests.local.one_process import stream_of
from tests.unit.test_data_tar import archive
from tests.unit.test_data_tokenbin import write as write_pair

pytestmark = pytest.mark.timeout(240)

UNDECODABLE = (b'{"text": "gr\xfcn"}\n', b"{not json\n")  # lines, within what the source allows


def texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices("abc ü\n", k=int(min(3000, 20 * draw.paretovariate(0.7))))) for _ in range(count)]


def tar(folder: Path) -> dict[str, object]:
    """Three archives, one of them packed, with pictures between the texts."""
    for part in range(3):
        members = [(f"{i:03d}.{kind}", data) for i, text in enumerate(texts(40, part)) for kind, data in
                   (("jpg", b"\xff" * 700), ("txt", text.encode()))]  # fmt: skip
        data = archive(*members)
        name = f"{part}.tar.gz" if part == 2 else f"{part}.tar"
        (folder / name).write_bytes(gzip.compress(data) if part == 2 else data)
    return source("tar", folder.as_uri(), "Tar", "**/*.tar*", textField="txt")


def token_bin(folder: Path) -> dict[str, object]:
    for part in range(2):
        write_pair(folder, [[*np.frombuffer(t.encode(), np.uint8), 256] for t in texts(60, 10 + part)], name=f"{part}")
    return source("bin", folder.as_uri(), "TokenBin", "**/*.bin")


def packed_lines(folder: Path) -> dict[str, object]:
    for part, pack in enumerate((gzip.compress, zstandard.ZstdCompressor().compress)):
        lines = "".join(json.dumps({"text": t}) + "\n" for t in texts(60, 20 + part))
        (folder / f"{part}.jsonl.{'zst' if part else 'gz'}").write_bytes(pack(lines.encode() + UNDECODABLE[part]))
    return source("lines", folder.as_uri(), "Jsonl", "**/*.jsonl.*", maxRejected=len(UNDECODABLE))


def text_files(folder: Path) -> dict[str, object]:
    for i, text in enumerate(texts(60, 30)):
        (folder / f"{i:02d}.txt").write_text(text)
    return source("texts", folder.as_uri(), "Text", "**/*.txt")


def test_two_loaders_serve_every_format_as_one_process_reads_it_without_what_does_not_decode(tmp_path):
    objects = job_objects("file:///unused", f"file://{tmp_path}/checkpoints", trainers=1, loaders=2)
    sources = []
    for make in (tar, token_bin, text_files, packed_lines):
        (tmp_path / make.__name__).mkdir()
        sources.append(make(tmp_path / make.__name__))
    names = [at["metadata"]["name"] for at in sources]
    objects[2]["spec"]["sources"] = [{"name": name, "sourceRef": {"name": name}, "weight": 1} for name in names]
    run = Run(tmp_path, [*sources, *objects[2:]])
    assert run.run() == 0, run.output + run.logs()
    assert len(run.steps()) == STEPS
    assert all(sum(step["tokens_by_source"].get(name, 0) for step in run.steps().values()) for name in names)
    assert run.digests() == stream_of(run.objects, tmp_path)
    status = {
        name: json.loads((run.workdir / f"cluster/DataSource/default/{name}.json").read_text())["status"]
        for name in names
    }
    assert [status[name]["rejected"] for name in names] == [0, 0, 0, len(UNDECODABLE)]
