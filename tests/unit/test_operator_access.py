"""Where the operator and `cox` find the API server."""

from functools import partial

import pytest
from aiohttp import web
from typer.testing import CliRunner

from coxswain.errors import Refused
from coxswain_cli.__main__ import app
from coxswain_operator.kubernetes.access import Access, find_access, remember_header, users_access
from coxswain_operator.kubernetes.connection import Connection
from coxswain_operator.kubernetes.trust import Trust

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path):
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("authorities")
    return tmp_path


@pytest.fixture(autouse=True)
def no_kubeconfig(tmp_path, monkeypatch):
    """The home of the user that runs the tests holds no kubeconfig."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("host", "url"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_uses_its_service_account(account, host, url):
    access = find_access(account=account, environment={**POD, "KUBERNETES_SERVICE_HOST": host})
    assert (access.url, access.trust) == (url, Trust(b"authorities"))
    assert access.authorization() == "Bearer first"


def test_a_pod_is_in_the_namespace_that_its_account_names(account):
    assert find_access(account=account, environment=POD).namespace == "default"
    (account / "namespace").write_text("team\n")
    assert find_access(account=account, environment=POD).namespace == "team"


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


def test_a_person_in_a_pod_asks_the_cluster_of_kubeconfig_and_else_that_of_the_home(account, kubeconfig, tmp_path):
    both = f"{tmp_path / 'absent'}:{kubeconfig}"
    assert users_access(account=account, environment={**POD, "KUBECONFIG": both}).url == "https://here:1"
    assert users_access(account=account, environment={**POD, "KUBECONFIG": ""}).url == "https://10.96.0.1:443"
    home = tmp_path / "home/.kube/config"
    home.parent.mkdir(parents=True)
    home.write_text(CONFIG.format(current="current-context: prod"))
    assert users_access(account=account, environment=POD).url == "https://there:2"
    assert users_access(account=account, environment={**POD, "KUBECONFIG": both}).url == "https://here:1"
    assert users_access(kubeconfig, "prod", account=account, environment=POD).url == "https://there:2"
    assert users_access(kubeconfig, account=account, environment={"KUBECONFIG": str(home)}).url == "https://here:1"


def test_a_kubeconfig_of_the_environment_that_is_not_there_is_named_and_no_other_cluster_is_asked(account, tmp_path):
    with pytest.raises(Refused, match=r"absent\.yaml: no kubeconfig there"):
        users_access(account=account, environment={**POD, "KUBECONFIG": str(tmp_path / "absent.yaml")})


@pytest.mark.parametrize("words", ["status", "status demo", "logs demo", "report demo", "scale demo 2"])
def test_every_command_in_a_pod_asks_the_cluster_of_kubeconfig(monkeypatch, account, kubeconfig, words):
    def asked(access, _):
        raise Refused("Asked", f"asked {access.url}")

    in_a_pod = partial(users_access, account=account, environment={**POD, "KUBECONFIG": str(kubeconfig)})
    monkeypatch.setattr("coxswain_cli.readers.cluster.users_access", in_a_pod)
    monkeypatch.setattr("coxswain_cli.readers.cluster.Connection", asked)
    done = CliRunner().invoke(app, [*words.split(), "--namespace", "team"])
    assert (done.exit_code, done.output) == (2, f"cox {words.split()[0]}: asked https://here:1\n")


def test_a_clusters_proxy_and_the_name_of_its_certificate_are_those_of_the_context(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://of.the.environment:3")
    path = tmp_path / "config"
    fields = 'server: "https://there:2", proxy-url: "http://proxy:8", tls-server-name: api.internal'
    path.write_text(CONFIG.format(current="current-context: test").replace('server: "https://there:2"', fields))
    found = find_access(path, context="prod")
    assert (found.proxy, found.trust.server_name) == ("http://proxy:8", "api.internal")
    other = find_access(path, context="test")
    assert (other.proxy, other.trust.server_name) == (None, None)


def test_a_kubeconfig_whose_context_or_user_is_empty_is_refused_or_used_without_a_traceback(tmp_path):
    path = tmp_path / "config"
    path.write_text(CONFIG.format(current="current-context: test").replace("user: {token: mine}", "user: null"))
    with pytest.raises(Refused, match=r"config: .*--kubeconfig"):
        find_access(path)
    path.write_text("contexts: [{name: bare}]\nclusters: []\nusers: []\ncurrent-context: bare\n")
    with pytest.raises(Refused, match=r"config: .*--kubeconfig"):
        find_access(path)


def test_a_folder_in_place_of_a_kubeconfig_is_refused(tmp_path):
    with pytest.raises(Refused, match=r"--kubeconfig"):
        find_access(tmp_path)


async def test_calls_go_through_the_proxy_of_the_kubeconfig():
    hosts = []

    async def answer(request):
        hosts.append(request.host)
        return web.json_response({})

    proxy = web.Application()
    proxy.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(proxy)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        behind = Access("http://api.invalid", proxy=f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with Connection(behind) as connection:
            assert await connection.call("GET", "/x") == {}
    finally:
        await runner.cleanup()
    assert hosts == ["api.invalid"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'server: "https://here:1"', 'server: "https://here:1", proxy-url: "socks5://me:word@p"',
            "the scheme 'socks5'; give a proxy of http",
        ),
        ("token: mine", "token: mine, as: boss", "user has 'as': acting as another user is not supported"),
        ("token: mine", "token: mine, as-groups: [bosses]", "user has 'as-groups': acting as another user"),
    ],
)  # fmt: skip
def test_what_would_lead_to_another_server_or_another_user_is_refused_by_name(tmp_path, old, new, words):
    path = tmp_path / "config"
    path.write_text(CONFIG.format(current="current-context: test").replace(old, new))
    with pytest.raises(Refused) as refused:
        find_access(path)
    assert words in str(refused.value) and "word@" not in str(refused.value)


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

    header = remember_header(look, lambda: now)
    assert [header(), header()] == ["Bearer 10.0"] * 2
    now = 10.9
    assert header() == "Bearer 10.0"
    now = 11.0
    assert header() == "Bearer 11.0"
    assert looked == [10.0, 11.0]
