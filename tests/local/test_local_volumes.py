"""Volumes are folders; mount paths, references and host names resolve to this machine."""

import base64
import json
import stat
import sys

import pytest

from coxswain.errors import Refused
from coxswain_operator.local import LocalCluster
from tests.local.pods import container, pod, run_to_end, terminated, until, until_gone

DUMP = "import json, os, sys; json.dump({'argv': sys.argv[1:], 'env': dict(os.environ)}, open(os.environ['OUT'], 'w'))"


def configuration(kind, name, **files):
    return {"kind": kind, "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}, **files}


def mounted(name, path):
    return {"name": name, "mountPath": path}


@pytest.fixture
async def cluster(tmp_path):
    async with LocalCluster(tmp_path / "work") as cluster:
        yield cluster


async def environment_of(cluster, env=(), args=(), mounts=(), more=(), sources=(), **spec):
    """What a container saw. `more`: entries of its `env`; `sources`: of its `envFrom`."""
    out = cluster.workdir / "out.json"
    environment = [{"name": "OUT", "value": str(out)}, *({"name": k, "value": v} for k, v in dict(env).items())]
    main = container(DUMP, env=[*environment, *more], volumeMounts=[*mounts], envFrom=[*sources])
    main["args"] = [*main["args"], *args]
    status = await run_to_end(cluster, pod(main, **spec))
    assert status["phase"] == "Succeeded", (status, (cluster.workdir / "logs/p/main.log").read_text())
    return json.loads(out.read_text())


async def test_a_secret_is_a_folder_that_only_its_owner_reads(cluster):
    await cluster.create(configuration("Secret", "token", stringData={"token": "s3cret"}))
    program = "import os, pathlib, shutil; shutil.copytree(os.environ['DIR'], 'copy')"
    main = container(program, env=[{"name": "DIR", "value": "/etc/token"}], volumeMounts=[mounted("t", "/etc/token")])
    await run_to_end(cluster, pod(main, volumes=[{"name": "t", "secret": {"secretName": "token"}}]))
    copy = cluster.workdir / "copy/token"
    assert copy.read_text() == "s3cret"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


async def test_stored_secrets_are_private_files_in_base64(cluster):
    stored = await cluster.create(configuration("Secret", "token", stringData={"token": "s3cret"}))
    assert stored["data"] == {"token": base64.b64encode(b"s3cret").decode()}
    assert stat.S_IMODE((cluster.workdir / "cluster/Secret/default/token.json").stat().st_mode) == 0o600


async def test_the_emptydir_named_run_is_the_work_directory(cluster):
    seen = await environment_of(
        cluster,
        {"RUN": "/var/run/coxswain"},
        mounts=[mounted("run", "/var/run/coxswain")],
        volumes=[{"name": "run", "emptyDir": {}}],
    )
    assert seen["env"]["RUN"] == str(cluster.workdir)


async def test_mount_paths_are_replaced_at_the_start_of_words_only(cluster):
    volumes = [{"name": "v", "emptyDir": {}}]
    seen = await environment_of(
        cluster,
        {"OTHER": "/etc/jobs", "IN": "x/etc/job"},
        ["/etc/job/job.json"],
        [mounted("v", "/etc/job")],
        volumes=volumes,
    )
    assert seen["argv"][0].endswith("/volumes/p/volumes/v/job.json")
    assert (seen["env"]["OTHER"], seen["env"]["IN"]) == ("/etc/jobs", "x/etc/job")


async def test_the_parent_of_mounts_is_a_folder_of_them(cluster):
    for name in ("a", "b"):
        await cluster.create(configuration("Secret", name, stringData={"key": name}))
    program = "import os, pathlib\nfor p in sorted(pathlib.Path(os.environ['ALL']).iterdir()):"
    program += " print(p.name, (p / 'key').read_text())"
    volumes = [{"name": n, "secret": {"secretName": n}} for n in ("a", "b")]
    mounts = [mounted(n, f"/etc/secrets/{n}") for n in ("a", "b")]
    await run_to_end(
        cluster,
        pod(container(program, env=[{"name": "ALL", "value": "/etc/secrets"}], volumeMounts=mounts), volumes=volumes),
    )
    assert (cluster.workdir / "logs/p/main.log").read_text().split() == ["a", "a", "b", "b"]


async def test_a_host_name_of_the_pods_subdomain_is_the_address_of_that_pod_before_and_after_it_exists(cluster):
    seen = await environment_of(
        cluster, {"URL": "http://demo-coordinator.demo:7400"}, subdomain="demo", hostname="demo-trainer-0"
    )
    await cluster.create(
        pod(container("pass"), name="demo-coordinator-3", subdomain="demo", hostname="demo-coordinator")
    )
    coordinator = await until(cluster, lambda p: "podIP" in p["status"], "demo-coordinator-3")
    assert seen["env"]["URL"] == f"http://{coordinator['status']['podIP']}:7400"


async def test_a_name_that_only_ends_like_the_subdomain_is_no_pods(cluster):
    """Of a job that is called like a domain or like the end of a file's name."""
    given = {"PROXY": "https://example.dev:8080", "FILE": "settings.dev", "OTHER": "my-dev-coordinator.dev"}
    seen = await environment_of(cluster, given, subdomain="dev", hostname="dev-trainer-0")
    assert {name: seen["env"][name] for name in given} == given


async def test_field_references_name_the_pod_itself(cluster):
    fields = {"NAME": "metadata.name", "UID": "metadata.uid", "IP": "status.podIP", "LABEL": "metadata.labels['role']"}
    env = [{"name": k, "valueFrom": {"fieldRef": {"fieldPath": v}}} for k, v in fields.items()]
    manifest = pod(container("import os; print(*[os.environ[k] for k in ('NAME', 'UID', 'IP', 'LABEL')])", env=env))
    manifest["metadata"]["labels"] = {"role": "trainer"}
    stored = await cluster.create(manifest)
    ended = await until(cluster, lambda p: p["status"]["phase"] == "Succeeded")
    expected = ["p", stored["metadata"]["uid"], ended["status"]["podIP"], "trainer"]
    assert (cluster.workdir / "logs/p/main.log").read_text().split() == expected


async def test_a_pod_waits_for_a_secret_that_comes_later(cluster):
    manifest = pod(
        container("pass", volumeMounts=[mounted("t", "/t")]), volumes=[{"name": "t", "secret": {"secretName": "late"}}]
    )
    await cluster.create(manifest)
    await until(cluster, lambda p: "'late' does not exist" in p["status"].get("message", ""))
    await cluster.create(configuration("Secret", "late", stringData={"k": "v"}))
    await until(cluster, lambda p: p["status"]["phase"] == "Succeeded")


async def test_chosen_keys_of_several_sources_are_files_at_their_paths_and_an_optional_source_may_be_absent(cluster):
    await cluster.create(configuration("ConfigMap", "job", data={"a": "1", "b": "2"}, binaryData={"c": "/w=="}))
    await cluster.create(configuration("Secret", "token", stringData={"token": "3"}))
    chosen = {"name": "job", "items": [{"key": "a", "path": "first"}, {"key": "c", "path": "raw"}]}
    absent = {"name": "nosuch", "optional": True}
    sources = [{"configMap": chosen}, {"secret": {"name": "token"}}, {"configMap": absent}]
    volumes = [{"name": "v", "projected": {"sources": sources}}]
    program = "import os, pathlib\nfor p in sorted(pathlib.Path(os.environ['ALL']).iterdir()):"
    program += " print(p.name, p.read_bytes().hex())"
    main = container(program, env=[{"name": "ALL", "value": "/v"}], volumeMounts=[mounted("v", "/v")])
    await run_to_end(cluster, pod(main, volumes=volumes))
    found = (cluster.workdir / "logs/p/main.log").read_text().split()
    assert found == ["first", b"1".hex(), "raw", "ff", "token", b"3".hex()]


async def test_a_sub_path_of_a_volume_is_what_a_container_mounts(cluster):
    part = {**mounted("v", "/etc/job"), "subPath": "part/one"}
    seen = await environment_of(cluster, {"IN": "/etc/job/x"}, [], [part], volumes=[{"name": "v", "emptyDir": {}}])
    assert seen["env"]["IN"].endswith("/volumes/p/volumes/v/part/one/x")


async def test_a_key_that_no_secret_has_fails_the_pod_by_name(cluster):
    reference = {"name": "K", "valueFrom": {"secretKeyRef": {"name": "nosuch", "key": "k"}}}
    status = await run_to_end(cluster, pod(container("pass", env=[reference])))
    assert (status["reason"], status["message"]) == ("CreateContainerConfigError", "Secret 'nosuch' has no key 'k'")


async def test_an_emptydir_goes_with_its_pod(cluster):
    manifest = pod(container("pass", volumeMounts=[mounted("v", "/v")]), volumes=[{"name": "v", "emptyDir": {}}])
    await run_to_end(cluster, manifest)
    assert (cluster.workdir / "volumes/p/volumes/v").is_dir()
    await cluster.delete("Pod", "default", "p")
    await until_gone(cluster)
    assert not (cluster.workdir / "volumes/p").exists()


async def test_variables_in_arguments_are_expanded(cluster):
    seen = await environment_of(cluster, {"STEP": "7"}, ["--step=$(STEP)", "$(UNKNOWN)"])
    assert seen["argv"] == ["--step=7", "$(UNKNOWN)"]


async def test_a_reference_is_expanded_as_a_kubelet_does_and_only_once(cluster):
    """Not of this machine's environment, which no container on a cluster has; and not what stands in a Secret."""
    await cluster.create(configuration("Secret", "login", stringData={"word": "a$(FIRST)b$$c"}))
    env = [
        {"name": "EARLY", "value": "$(FIRST)"},
        {"name": "FIRST", "value": "1"},
        {"name": "NEXT", "value": "$(FIRST)$(NO-SUCH)$(PATH)"},
        {"name": "ESCAPED", "value": "$$(FIRST) $$ $x $("},
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "word"}}},
        {"name": "my.name", "value": "2"},
    ]
    seen = await environment_of(cluster, {}, ["$(my.name)", "$$(FIRST)", "$(WORD)", "$(PATH)"], more=env)
    assert {k: seen["env"].get(k) for k in ("EARLY", "NEXT", "ESCAPED", "WORD")} == {
        "EARLY": "$(FIRST)", "NEXT": "1$(NO-SUCH)$(PATH)", "ESCAPED": "$(FIRST) $ $x $(", "WORD": "a$(FIRST)b$$c",
    }  # fmt: skip
    assert seen["argv"] == ["2", "$(FIRST)", "a$(FIRST)b$$c", "$(PATH)"]


async def test_all_keys_of_an_envfrom_are_variables_and_an_absent_optional_one_is_none(cluster):
    await cluster.create(configuration("Secret", "cloud", stringData={"KEY": "s3", "MODE": "old"}))
    sources = [
        {"prefix": "MY_", "secretRef": {"name": "cloud"}},
        {"secretRef": {"name": "cloud"}},
        {"configMapRef": {"name": "nosuch", "optional": True}},
    ]
    absent = {"name": "ABSENT", "valueFrom": {"secretKeyRef": {"name": "nosuch", "key": "k", "optional": True}}}
    env = [absent, {"name": "MODE", "value": "of $(KEY)"}]
    seen = await environment_of(cluster, {}, [], more=env, sources=sources)
    names = ("MY_KEY", "MY_MODE", "KEY", "MODE", "ABSENT")
    assert [seen["env"].get(n) for n in names] == ["s3", "old", "s3", "of s3", None]
    status = await run_to_end(cluster, pod(container("pass", envFrom=[{"secretRef": {"name": "nosuch"}}]), name="q"))
    assert status["message"] == "envFrom: Secret 'nosuch' does not exist"


async def test_a_secret_that_is_no_text_reaches_its_variable_as_it_is(cluster):
    data = base64.b64encode(b"\xff").decode()
    await cluster.create(configuration("Secret", "raw", data={"k": data}))
    reference = {"name": "RAW", "valueFrom": {"secretKeyRef": {"name": "raw", "key": "k"}}}
    program = "import os; print(os.environb[b'RAW'].hex())"
    await run_to_end(cluster, pod(container(program, env=[reference])))
    assert (cluster.workdir / "logs/p/main.log").read_text().split() == ["ff"]


async def test_a_pod_whose_volumes_cannot_be_made_says_why(cluster):
    (cluster.workdir / "volumes").write_text("in the way")
    manifest = pod(container("pass", volumeMounts=[mounted("v", "/v")]), volumes=[{"name": "v", "emptyDir": {}}])
    status = await run_to_end(cluster, manifest)
    assert (status["phase"], status["reason"]) == ("Failed", "MachineTrouble")
    assert "Not a directory" in status["message"] and f"{cluster.workdir}/volumes" in status["message"]


@pytest.mark.parametrize("name", ["python", "python3"])
async def test_python_is_the_interpreter_of_the_command_that_runs_the_job(cluster, name):
    await run_to_end(cluster, pod({"name": "main", "command": [name, "-c", "import sys; print(sys.executable)"]}))
    assert (cluster.workdir / "logs/p/main.log").read_text().strip() == sys.executable


async def test_a_container_without_a_command_is_refused_by_name(cluster):
    status = await run_to_end(cluster, pod({"name": "imageonly", "image": "x"}))
    assert (status["phase"], status["reason"]) == ("Failed", "NoCommand")
    with pytest.raises(KeyError):
        terminated(status)


async def test_a_variable_that_no_process_takes_is_refused_by_name_and_without_its_value(cluster):
    """Secrets may hold any bytes."""
    await cluster.create(configuration("Secret", "key", data={"raw": base64.b64encode(b"s3\0cret").decode()}))
    raw = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "raw"}}}
    status = await run_to_end(cluster, pod(container("pass", env=[raw])))
    assert (status["phase"], status["reason"]) == ("Failed", "BadVariable")
    assert "'main': variable 'KEY'" in status["message"] and "cret" not in status["message"]


@pytest.mark.parametrize("name", ["A=B", "A\0"])
async def test_a_variable_whose_name_no_process_takes_is_refused_by_name(cluster, name):
    status = await run_to_end(cluster, pod(container("pass", env=[{"name": name, "value": "x"}])))
    assert (status["phase"], status["reason"]) == ("Failed", "BadVariable")
    assert f"variable {name!r}" in status["message"]


async def test_a_word_of_a_command_that_no_process_takes_is_refused(cluster):
    status = await run_to_end(cluster, pod({"name": "main", "command": ["python", "-c", "pass", "a\0b"]}))
    assert (status["phase"], status["reason"]) == ("Failed", "BadCommand")
    assert "'main'" in status["message"] and "NUL" in status["message"]


async def test_a_pod_that_cannot_run_for_any_other_reason_says_so(cluster):
    main = container("pass", volumeMounts=[mounted("v", "/v")])
    status = await run_to_end(cluster, pod(main, volumes=[{"name": "v", "hostPath": {"path": "/a\0b"}}]))
    assert (status["phase"], status["reason"]) == ("Failed", "PodUnusable")
    assert status["message"].startswith("ValueError: ")


async def test_a_folder_of_the_users_own_named_volumes_is_not_deleted_but_refuses_the_work_directory(tmp_path):
    """`--workdir .` is such a folder. It is refused as often as it is tried."""
    own = tmp_path / "volumes" / "own.txt"
    own.parent.mkdir()
    own.write_text("dear")
    for _ in range(2):
        with pytest.raises(Refused, match=f"{own.parent} is there, which no run has made; choose another --workdir"):
            async with LocalCluster(tmp_path):
                pass
    assert own.read_text() == "dear"
