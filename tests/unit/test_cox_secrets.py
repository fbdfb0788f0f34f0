"""`cox run` refuses a job whose Secret is in none of its files: without it the pods would wait without end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coxswain.errors import Refused
from coxswain_cli.__main__ import app
from coxswain_cli.preflight import check_secrets
from tests.local.jobs import job_objects, write_objects

ENDPOINT = {"secretRef": {"name": "keys"}}
OBJECTS: list[dict[str, Any]] = [
    {"kind": "DataSource", "metadata": {"name": "docs"}, "spec": {"endpoint": ENDPOINT}},
    {"kind": "TrainingJob", "metadata": {"name": "job"}, "spec": {"checkpoint": {"endpoint": ENDPOINT}}},
]


def test_every_endpoint_whose_secret_is_in_no_file_is_refused_by_name() -> None:
    with pytest.raises(Refused) as refused:
        check_secrets(OBJECTS)
    assert "DataSource docs: spec.endpoint.secretRef.name: no file holds Secret 'keys'" in refused.value.message
    assert "TrainingJob job: spec.checkpoint.endpoint.secretRef.name" in refused.value.message


def test_a_secret_of_the_files_is_enough() -> None:
    check_secrets([*OBJECTS, {"kind": "Secret", "metadata": {"name": "keys"}, "stringData": {}}])


def test_cox_run_refuses_it_before_anything_starts(tmp_path: Path) -> None:
    objects = job_objects(f"file://{tmp_path}/corpus", "s3://bucket/run")
    objects[-1]["spec"]["checkpoint"]["endpoint"] = ENDPOINT
    file = write_objects(tmp_path / "job.yaml", objects)
    done = CliRunner().invoke(app, ["run", str(file), "--workdir", str(tmp_path / "work")])
    assert (done.exit_code, (tmp_path / "work").exists()) == (2, False), done.output
    assert "spec.checkpoint.endpoint.secretRef.name: no file holds Secret 'keys'" in " ".join(done.output.split())
