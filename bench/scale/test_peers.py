"""What could make the scale bench's rivals look worse than they are, unnoticed."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from bench.scale.control_plane import Plane
from bench.scale.coxswain import pods_of
from bench.scale.peers import PEERS, peers
from bench.scale.peers.certificates import HOST, write_certificate
from bench.scale.peers.jobset import job_set
from bench.scale.peers.modules import definitions, reached_at
from bench.scale.peers.pods import count, template
from bench.scale.peers.trainer import runtime, train_job
from bench.scale.peers.training_operator import pytorch_job
from e2e.cluster.module_sources import version_of

NAMED = ("hostname", "subdomain")


def test_the_pins_of_tools_are_read_from_their_own_modules() -> None:
    assert version_of("kwok", "sigs.k8s.io/kwok") == "v0.7.0"
    assert version_of("jobset", "sigs.k8s.io/jobset") == "v0.10.1"
    assert version_of("trainer", "github.com/kubeflow/trainer/v2") == "v2.0.0"
    assert version_of("training-operator", "github.com/kubeflow/training-operator") == "v1.9.0"


def test_a_module_that_is_not_pinned_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"jobset/go.mod pins no example.dev/none"):
        version_of("jobset", "example.dev/none")


def test_an_unknown_rival_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="unknown volcano; allowed are jobset, trainer, training-operator"):
        peers(cast("Plane", None), [PEERS[0], "volcano"])


def test_a_certificate_is_its_own_authority_for_all_its_names(tmp_path: Path) -> None:
    made = write_certificate(tmp_path / "new" / "certs", ["rival-ca", "rival.system.svc"])
    authority, checked = tmp_path / "bundle.crt", ["openssl", "verify", "-purpose", "sslserver", "-CAfile"]
    authority.write_bytes(base64.b64decode(made.bundle))
    for check in (["-verify_hostname", "rival-ca"], ["-verify_hostname", "rival.system.svc"], ["-verify_ip", HOST]):
        subprocess.run([*checked, authority, *check, made.folder / "tls.crt"], check=True, capture_output=True)
    # Rotators renew what ends within 90 days, and would then serve a certificate that no client trusts.
    lasting = ["openssl", "x509", "-noout", "-checkend", str(91 * 86400), "-in", made.folder / "tls.crt"]
    subprocess.run(lasting, check=True, capture_output=True)


def test_the_secret_of_a_certificate_holds_what_rotators_read(tmp_path: Path) -> None:
    secret = write_certificate(tmp_path / "certs", ["rival-ca"]).secret("system", "rival-cert")
    data = cast("dict[str, str]", secret["data"])
    assert sorted(data) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    assert base64.b64decode(data["ca.key"]).startswith(b"-----BEGIN RSA PRIVATE KEY-----")


def test_keys_of_certificates_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    made = write_certificate(tmp_path / "certs", ["rival-ca"])
    assert {(made.folder / name).stat().st_mode & 0o077 for name in ("tls.key", "ca.key")} == {0}


def test_moved_webhooks_keep_their_selectors_and_failure_policies() -> None:
    hook = {
        "name": "mpod.kb.io",
        "clientConfig": {"service": {"name": "webhook-service", "namespace": "system", "path": "/mutate--v1-pod"}},
        "failurePolicy": "Fail",
        "objectSelector": {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]},
        "rules": [{"operations": ["CREATE"], "resources": ["pods"]}],
    }
    shipped = {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "mutating-webhook-configuration"}}
    [moved] = reached_at("https://127.0.0.1:1234", "YWJj", [{**shipped, "webhooks": [hook]}], "jobset")
    client = {"url": "https://127.0.0.1:1234/mutate--v1-pod", "caBundle": "YWJj"}
    assert moved["webhooks"] == [{**hook, "clientConfig": client}]
    assert moved["metadata"] == {"name": "mutating-jobset"}


def test_of_a_rivals_files_only_definitions_are_installed(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("kind: CustomResourceDefinition\nspec: {}\n---\n---\nkind: Deployment\n")
    assert definitions([file]) == [{"kind": "CustomResourceDefinition", "spec": {}}]


def test_rivals_pods_are_our_trainers_but_for_names_and_labels() -> None:
    ours = pods_of("j", 1, "any")[-1]["spec"]
    theirs = template("pytorch")
    assert set(theirs) == {"spec"}  # our operator would count pods with its labels
    [container], [trainer] = theirs["spec"]["containers"], ours["containers"]
    assert container == {**trainer, "name": "pytorch"}
    rest = {key: value for key, value in ours.items() if key not in (*NAMED, "containers")}
    assert {key: value for key, value in theirs["spec"].items() if key != "containers"} == rest


def test_every_rivals_job_has_as_many_pods_as_ours() -> None:
    pods = count(30)
    assert pods == len(pods_of("j", 30, "any"))
    master_and_workers = pytorch_job("j", pods)["spec"]["pytorchReplicaSpecs"].values()
    assert sum(replica["replicas"] for replica in master_and_workers) == pods
    assert _only_job(job_set("j", pods))["parallelism"] == pods
    assert train_job("j", pods)["spec"]["trainer"]["numNodes"] == pods


@pytest.mark.parametrize("job", [job_set("j", 4), runtime("any")["spec"]["template"]])
def test_one_failed_pod_restarts_a_whole_job_where_a_rival_can(job: dict[str, Any]) -> None:
    assert _only_job(job)["backoffLimit"] == 0
    assert job["spec"]["failurePolicy"]["maxRestarts"] > 0


def _only_job(job: dict[str, Any]) -> dict[str, Any]:
    [replicated] = job["spec"]["replicatedJobs"]
    found: dict[str, Any] = replicated["template"]["spec"]
    return found
