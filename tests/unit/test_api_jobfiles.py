"""Files of a run on this machine: one job, all that it names, and nothing that is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coxswain.api.jobfiles import load_config, load_run
from coxswain.errors import Refused
from tests.api_samples import Manifest, sample

SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}}
JOB = sample("TrainingJob", {"spec.mixRef.name": "code"})
ALL = [JOB, sample("DataSource"), sample("DataMix", name="code"), SECRET]  # a mix and a source of one name


def written(folder: Path, objects: list[Manifest]) -> list[Path]:
    path = folder / "job.yaml"
    path.write_text("\n---\n".join(map(json.dumps, objects)))
    return [path]


def refusal(files: list[Path]) -> tuple[str, str]:
    with pytest.raises(Refused) as caught:
        load_run(files)
    return caught.value.reason, caught.value.message


def test_a_job_and_what_it_names_are_resolved_by_kind_with_defaults(tmp_path: Path) -> None:
    files = written(tmp_path, ALL)
    job = load_config(files)
    assert (job.name, [s.name for s in job.mix.sources], job.loaders) == ("demo", ["code"], 1)
    objects: list[Any] = load_run(files)
    assert [o["kind"] for o in objects] == ["TrainingJob", "DataSource", "DataMix", "Secret"]
    assert objects[1]["spec"]["include"]  # a default
    assert objects[3] == SECRET


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        ([], "0 (none); name a file that holds it, or write it"),
        ([JOB, sample("TrainingJob", name="other")], "2 (demo, other); take the others out of the files"),
    ],
)
def test_files_that_do_not_hold_just_one_job_are_refused(tmp_path: Path, jobs: list[Manifest], says: str) -> None:
    reason, message = refusal(written(tmp_path, [*jobs, *ALL[1:]]))
    assert (reason, message) == ("OneJob", f"a run has exactly one TrainingJob; the files hold {says}")


def test_what_a_job_names_and_the_files_lack_is_refused(tmp_path: Path) -> None:
    reason, message = refusal(written(tmp_path, [JOB, ALL[2]]))
    assert reason == "Invalid"
    assert message.startswith(
        "refused\n  DataMix/code spec.sources[0].sourceRef.name: DataSource 'code' does not exist"
    )


def test_every_fault_has_its_file_and_its_document_if_it_lies_in_one(tmp_path: Path) -> None:
    files = written(tmp_path, [*ALL, {"kind": "Pod"}])
    _, message = refusal([*files, tmp_path / "none.yaml"])
    first, document, absent = message.splitlines()
    assert first == "refused"
    assert document.startswith(f"  {files[0]}, document 5: kind: unknown kind 'Pod'")
    assert absent.startswith(f"  {tmp_path}/none.yaml: cannot read the file")
