"""Where the operator finds its API server."""

import pytest

from coxswain.errors import Refused
from coxswain_operator.kubernetes.access import find_access

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path):
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("authorities")
    return tmp_path


@pytest.fixture(autouse=True)
def no_kubeconfig(tmp_path, monkeypatch):
    """The home of the user that runs the tests holds no kubeconfig."""
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("host", "url"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_uses_its_service_account(account, host, url):
    access = find_access(account=account, environment={**POD, "KUBERNETES_SERVICE_HOST": host})
    assert (access.url, access.ca, access.verify) == (url, str(account / "ca.crt"), True)
    assert access.authorization() == "Bearer first"


def test_a_token_that_the_kubelet_renewed_is_used_at_once(account):
    access = find_access(account=account, environment=POD)
    (account / "token").write_text("second\n")
    assert access.authorization() == "Bearer second"


@pytest.mark.parametrize("missing", ["token", "ca.crt", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"])
def test_half_a_service_account_is_none(account, missing):
    (account / missing).unlink(missing_ok=True)
    with pytest.raises(Refused, match=r"neither a service account nor a kubeconfig.*--kubeconfig"):
        find_access(account=account, environment={k: v for k, v in POD.items() if k != missing})


def test_a_kubeconfig_that_is_named_comes_before_the_service_account(account, tmp_path):
    with pytest.raises(Refused, match=r"absent\.yaml"):
        find_access(tmp_path / "absent.yaml", account, POD)
