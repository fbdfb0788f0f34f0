"""`cox validate` says every fault at once, in one run, for people and for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from coxswain.api.crd import crds
from coxswain.api.jobfiles import load_run
from coxswain.api.parallelism import HybridData, ParallelismPolicySpec
from coxswain.cost.constants import SHIPPED
from coxswain.errors import Refused
from coxswain.plan.planners import BALANCES
from coxswain_cli.crds import crds_command
from coxswain_cli.validate import validate_command
from tests.api_samples import REMOVED, Manifest, sample


def run(folder: Path, *manifests: Manifest, options: tuple[str, ...] = ()) -> Result:
    path = folder / "job.yaml"
    # As JSON, which is YAML: safe_dump leaves "3e-4" without quotes, and Kubernetes takes that for a number.
    path.write_text("\n---\n".join(json.dumps(manifest) for manifest in manifests))
    app = typer.Typer()
    app.command()(validate_command)
    return CliRunner().invoke(app, [str(path), *options])


def faults(folder: Path, *manifests: Manifest) -> list[dict[str, Any]]:
    result = run(folder, *manifests, options=("--json",))
    assert result.exit_code == 2
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_right_files_exit_with_0(tmp_path: Path) -> None:
    result = run(tmp_path, *(sample(kind) for kind in ("DataSource", "DataMix", "ParallelismPolicy", "TrainingJob")))
    first, *notes = result.stdout.splitlines()
    assert (result.exit_code, first) == (0, "4 objects in 1 file: no faults")
    assert all(note.startswith("note: TrainingJob demo: predicted memory: ") for note in notes)


@pytest.mark.parametrize(("hardware", "notes"), [("h100-80g", 1), ("cpu", 0)])
def test_the_predicted_memory_of_the_fullest_gpu_is_a_note(tmp_path: Path, hardware: str, notes: int) -> None:
    job = sample("TrainingJob", {"spec.parallelism.hardware": hardware, "spec.parallelism.recompute": "Full"})
    printed = run(tmp_path, *(sample(kind) for kind in ("DataSource", "DataMix")), job).stdout
    found = re.findall(r"demo: predicted memory: [\d.]+ GiB of 80.0 GiB on the fullest device \(replica 0", printed)
    assert len(found) == notes


def test_what_a_cluster_may_refuse_in_a_template_is_a_note_and_no_fault(tmp_path: Path) -> None:
    job = sample("TrainingJob", {"spec.trainers.template": {"spec": {"hostNetwork": True}}})
    others = [sample(kind) for kind in ("DataSource", "DataMix", "ParallelismPolicy")]
    result = run(tmp_path, *others, job)
    assert result.exit_code == 0
    assert (
        "note: spec.trainers.template.spec.hostNetwork: True is refused by Pod Security level restricted"
        in result.stdout
    )
    assert "hostNetwork" not in run(tmp_path, job).stdout  # what the job refers to is not in the file


def test_faults_of_all_layers_and_documents_come_at_once(tmp_path: Path) -> None:
    changes = {"spec.bogus": 1, "spec.stragglers.action": "Panic", "spec.stop": {}, "metadata.name": "a" * 41}
    found = faults(tmp_path, sample("TrainingJob", changes), sample("DataSource", {"spec.uri": REMOVED}))
    assert {(fault["document"], fault["path"]) for fault in found} == {
        (1, "spec.bogus"), (1, "spec.stragglers.action"), (1, "spec.stop"), (1, "metadata.name"), (2, "spec.uri"),
    }  # fmt: skip


def test_each_fault_names_the_value_what_is_allowed_and_the_fix(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, sample("TrainingJob", {"spec.stragglers.action": "Panic"}))
    assert fault["value"] == "Panic"
    assert fault["allowed"] == "None, Warn, Rebalance, Migrate, ReplaceNode"
    assert fault["way_out"] == "use one of the allowed values"
    assert fault["file"] == str(tmp_path / "job.yaml")


@pytest.mark.parametrize(
    "path", ["spec.\x1b]0;title\x07", "metadata.labels.\x1b[2J", "spec.trainers.template.\x1b[2J", "\x9b2J"]
)
def test_a_control_character_of_a_file_reaches_no_terminal(tmp_path: Path, path: str) -> None:
    job = sample("TrainingJob", {path: "\x1b[31m"})
    with pytest.raises(Refused) as caught:
        run(tmp_path, job)
        load_run([tmp_path / "job.yaml"])
    for said in (run(tmp_path, job).stderr.replace("\n", ""), caught.value.message.replace("\n", "")):
        assert said.isprintable() and re.search(r"\\x1b|\\x9b", said)


def test_a_misspelt_field_gets_its_nearest_neighbour(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, sample("TrainingJob", {"spec.checkpoint.keeplast": 3}))
    assert (fault["path"], fault["way_out"]) == ("spec.checkpoint.keeplast", "did you mean keepLast?")


def test_faults_are_plain_lines_on_standard_error(tmp_path: Path) -> None:
    result = run(tmp_path, sample("TrainingJob", {"spec.trainers.count": 9}))
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr
    assert "spec.trainers.count: count 9 may not be above maxCount 8; lower count, or raise maxCount" in result.stderr
    assert "1 fault\n" in result.stderr


def test_an_object_given_twice_is_a_fault(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, sample("DataMix"), sample("DataMix"))
    assert fault["document"] == 2
    assert "already in" in fault["message"]


def test_objects_that_lie_elsewhere_are_no_fault(tmp_path: Path) -> None:
    assert run(tmp_path, sample("TrainingJob")).exit_code == 0


def test_faults_between_objects_of_the_files_are_found(tmp_path: Path) -> None:
    by_reference = {
        "spec.parallelism": REMOVED,
        "spec.parallelismRef": {"name": "policy"},
        "spec.batch.maxSequenceTokens": 4096,
    }
    found = faults(tmp_path, sample("TrainingJob", by_reference), sample("ParallelismPolicy"))
    assert [(fault["reason"], fault["path"]) for fault in found] == [
        ("CapacityTooSmall", "spec.batch.maxSequenceTokens")
    ]


@pytest.mark.parametrize("metadata", [None, {}, {"name": 3}])
def test_an_object_without_a_name_is_a_fault(tmp_path: Path, metadata: Any) -> None:
    assert "metadata.name" in [fault["path"] for fault in faults(tmp_path, sample("DataMix", {"metadata": metadata}))]


@pytest.mark.parametrize("spec", [None, [], "text", 3])
def test_a_spec_that_is_no_mapping_is_a_fault(tmp_path: Path, spec: Any) -> None:
    assert "spec" in [fault["path"] for fault in faults(tmp_path, sample("TrainingJob", {"spec": spec}))]


def test_cox_crds_prints_what_kubectl_can_apply() -> None:
    app = typer.Typer()
    app.command()(crds_command)
    assert list(yaml.safe_load_all(CliRunner().invoke(app, []).stdout)) == crds()


@pytest.mark.parametrize("kind", ["DataSource", "DataMix", "ParallelismPolicy"])
@pytest.mark.parametrize("name", ["dócs", "Docs_X", "a" * 254, "-a", "a-"])
def test_a_name_that_no_cluster_takes_is_a_fault(tmp_path: Path, kind: str, name: str) -> None:
    (fault,) = faults(tmp_path, sample(kind, {"metadata.name": name}))
    assert fault["path"] == "metadata.name"
    assert fault["allowed"] == "lower-case letters, digits, - and ., at most 253"


@pytest.mark.parametrize("kind", ["DataSource", "DataMix", "ParallelismPolicy", "TrainingJob"])
def test_an_empty_name_is_one_fault_that_says_so(tmp_path: Path, kind: str) -> None:
    (fault,) = faults(tmp_path, sample(kind, {"metadata.name": ""}))
    assert (fault["message"], fault["way_out"]) == ("required, but empty", "give the object a name")


@pytest.mark.parametrize("kind", ["DataSource", "TrainingJob"])
@pytest.mark.parametrize(("name", "message"), [(True, "True is not a string"), (123, "123 is not a string")])
def test_a_name_that_is_no_string_is_said_to_be_one_to_quote(
    tmp_path: Path, kind: str, name: object, message: str
) -> None:
    (fault,) = faults(tmp_path, sample(kind, {"metadata.name": name}))
    assert (fault["message"], fault["way_out"]) == (message, "put the value in quotes")


@pytest.mark.parametrize(
    ("field", "value"),
    [("spec.hardware", "tpu"), ("spec.hybridData.balance", "Zigzag"), ("spec.hybridData.balance", "makespan")],
)
def test_what_no_planner_knows_is_a_fault_before_a_run_starts(tmp_path: Path, field: str, value: str) -> None:
    (fault,) = faults(tmp_path, sample("ParallelismPolicy", {field: value}))
    assert (fault["path"], fault["value"]) == (field, value)


def test_every_balance_and_hardware_of_the_api_has_its_planner_and_its_constants() -> None:
    fields = ParallelismPolicySpec.model_fields
    assert sorted(get_args(fields["hardware"].annotation)) == sorted(SHIPPED)
    balances = get_args(HybridData.model_fields["balance"].annotation)
    assert [name.lower() for name in balances] == list(BALANCES)


def test_a_file_without_an_object_is_a_fault_beside_one_with_objects(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n---\n")
    result = run(tmp_path, sample("DataSource"), options=(str(tmp_path / "empty.yaml"), "--json"))
    (fault,) = json.loads(result.stdout)
    assert (fault["file"], fault["message"]) == (str(tmp_path / "empty.yaml"), "holds no object")


def test_an_object_that_is_in_none_of_the_files_is_a_note_and_no_fault(tmp_path: Path) -> None:
    result = run(tmp_path, *(sample(kind) for kind in ("DataMix", "ParallelismPolicy", "TrainingJob")))
    assert result.exit_code == 0
    assert "note: DataMix/" in result.stdout
    assert "does not exist in these files; `cox run` needs it there, a cluster may have it" in result.stdout


@pytest.mark.parametrize("namespace", [None, ""])
def test_an_object_whose_namespace_is_left_empty_is_in_that_of_the_command(
    tmp_path: Path, namespace: str | None
) -> None:
    """`namespace:` without a value is null in YAML."""
    empty = {"metadata.namespace": namespace}
    printed = run(tmp_path, sample("DataSource", empty), sample("DataMix"), sample("TrainingJob")).stdout
    assert printed.startswith("3 objects in 1 file: no faults") and "does not exist" not in printed
    assert run(tmp_path, sample("DataSource"), sample("DataMix"), sample("TrainingJob", empty)).stdout == printed
    (fault,) = faults(tmp_path, sample("DataMix", empty), sample("DataMix"))
    assert "'mix' is already in" in fault["message"]


def test_an_object_of_another_namespace_is_a_note_that_says_what_a_run_and_a_cluster_do_with_it(tmp_path: Path) -> None:
    others = (sample("DataSource", {"metadata.namespace": "shared"}), sample("DataMix"))
    result = run(tmp_path, *others, sample("TrainingJob"))
    assert (
        "note: DataMix/mix spec.sources[0].sourceRef.name: DataSource 'code' does not exist in the job's namespace; "
        "`cox run` takes that of shared, a cluster needs it in the job's\n" in result.stdout
    )
    assert load_run([tmp_path / "job.yaml"])  # takes it, as the note says
