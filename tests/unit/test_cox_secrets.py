"""`cox run` refuses a job whose Secret is in none of its files: without it the pods would wait without end."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain.errors import Refused
from coxswain_cli.preflight import check_secrets

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
