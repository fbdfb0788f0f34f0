"""Where the operator finds its API server."""

import pytest

from coxswain.errors import Refused
from coxswain_operator.kubernetes import access
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


CONFIG = """
apiVersion: v1
kind: Config
{current}
clusters:
- {{name: here, cluster: {{server: "https://here:1"}}}}
- {{name: there, cluster: {{server: "https://there:2"}}}}
users: [{{name: me, user: {{token: mine}}}}]
contexts:
- {{name: test, context: {{cluster: here, user: me}}}}
- {{name: prod, context: {{cluster: there, user: me, namespace: team}}}}
"""


@pytest.fixture
def kubeconfig(tmp_path):
    path = tmp_path / "config"
    path.write_text(CONFIG.format(current="current-context: test"))
    return path


@pytest.mark.parametrize(
    ("context", "found"),
    [
        ("", ("https://here:1", "default")),
        ("test", ("https://here:1", "default")),
        ("prod", ("https://there:2", "team")),
    ],
)
def test_a_context_names_the_cluster_and_the_namespace(kubeconfig, context, found):
    access = find_access(kubeconfig, context=context)
    assert (access.url, access.namespace) == found
    assert access.authorization() == "Bearer mine"


def test_a_named_context_comes_before_the_service_account_and_needs_no_current_one(account, tmp_path, monkeypatch):
    path = tmp_path / "config"
    path.write_text(CONFIG.format(current=""))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    assert find_access(account=account, environment=POD, context="prod").url == "https://there:2"
    with pytest.raises(Refused, match=r"no context ''; its contexts: prod, test"):
        find_access(path)


def test_a_context_that_the_kubeconfig_lacks_is_refused_with_those_that_it_has(kubeconfig):
    with pytest.raises(Refused, match=r"no context 'staging'; its contexts: prod, test"):
        find_access(kubeconfig, context="staging")


@pytest.mark.parametrize(
    "content", ["", "[]", "7", "{", "contexts: 7", "contexts: [{}]", "current-context: x", "\0", "a: b", "[" * 3000]
)
def test_a_kubeconfig_of_another_shape_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(Refused) as refused:
        find_access(path)
    assert len(str(refused.value).splitlines()) == 1


def test_a_pod_has_the_namespace_of_its_service_account(account):
    (account / "namespace").write_text("team-a")
    assert find_access(account=account, environment=POD).namespace == "team-a"


def test_a_header_is_looked_up_once_a_second_and_not_for_every_request():
    now, looked = 10.0, []

    def look():
        looked.append(now)
        return f"Bearer {now}"

    header = access._remembered(look, lambda: now)
    assert [header(), header()] == ["Bearer 10.0"] * 2
    now = 10.9
    assert header() == "Bearer 10.0"
    now = 11.0
    assert header() == "Bearer 11.0"
    assert looked == [10.0, 11.0]
