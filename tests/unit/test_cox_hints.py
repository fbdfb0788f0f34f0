"""Commands that `cox` says to type next address what the user's own command did: the same cluster, the same folder."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coxswain_cli.__main__ import app
from coxswain_cli.readers.folder import FolderReader
from coxswain_cli.summary import summary


class ApiServer(BaseHTTPRequestHandler):
    """Has no job; `kinds`: whether it knows TrainingJobs."""

    kinds = True

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.kinds and path.endswith("/namespaces/team/trainingjobs"):
            self._answer(200, {"items": []})
        else:
            self._answer(
                404, {"kind": "Status", "message": 'trainingjobs "demo" not found' if self.kinds else "no page"}
            )

    do_PATCH = do_GET

    def _answer(self, code: int, body: object) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class Bare(ApiServer):
    """Without our kinds."""

    kinds = False


@contextmanager
def serving(handler: type[ApiServer], folder: Path) -> Iterator[Path]:
    """Serves; gives a kubeconfig whose second context is the server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path = folder / "my kube.yaml"
    there = {"name": "away", "cluster": {"server": "http://127.0.0.1:1"}}, {
        "name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"},
    }  # fmt: skip
    contexts = [{"name": f"at {c['name']}", "context": {"cluster": c["name"], "user": "me"}} for c in there]
    users = [{"name": "me", "user": {}}]
    config = {"clusters": there, "contexts": contexts, "users": users, "current-context": "at away"}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
    try:
        yield path
    finally:
        server.shutdown()
        server.server_close()


def cox(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.output


def hint(said: str) -> list[str]:
    """The words of the command between backquotes."""
    found = re.search("`([^`]+)`", said)
    assert found is not None, said
    return shlex.split(found[1])


COMMANDS = [["status", "demo"], ["report", "demo"], ["logs", "demo"], ["scale", "demo", "3"]]


@pytest.mark.parametrize("command", COMMANDS, ids=[command[0] for command in COMMANDS])
def test_a_job_that_a_cluster_lacks_is_answered_by_a_command_that_lists_that_very_cluster(tmp_path, command):
    with serving(ApiServer, tmp_path) as kubeconfig:
        options = ["--kubeconfig", str(kubeconfig), "--context", "at here", "--namespace", "team"]
        code, said = cox(*command, *options)
        assert (code, "namespace team has no TrainingJob demo" in said) == (2, True), said
        assert cox(*hint(said)[1:]) == (0, "no jobs in this namespace\n")


@pytest.mark.parametrize("name", ["a/b", "../pods", "a?watch=true", "A", "a b", "a%2fb", "x" * 254])
@pytest.mark.parametrize("command", COMMANDS, ids=[command[0] for command in COMMANDS])
def test_a_name_that_no_object_has_is_refused_before_it_is_part_of_an_address(tmp_path, command, name):
    with serving(ApiServer, tmp_path) as kubeconfig:
        options = ["--kubeconfig", str(kubeconfig), "--context", "at here", "--namespace"]
        code, said = cox(command[0], name, *command[2:], *options, "team")
        assert (code, said.startswith(f"cox {command[0]}: JOB is {name[:3]!r}"[:-2])) == (2, True), said
        code, said = cox(*command, *options, name)
        assert (code, "--namespace is" in said, "lower-case letters, digits, - and ." in said) == (2, True, True), said


@pytest.mark.parametrize("command", [["status"], *COMMANDS], ids=lambda command: " ".join(command))
def test_a_cluster_without_the_kinds_is_answered_by_a_command_that_installs_them_there(tmp_path, command):
    with serving(Bare, tmp_path) as kubeconfig:
        code, said = cox(*command, "--kubeconfig", str(kubeconfig), "--context", "at here")
        assert code == 2, said
        words = hint(said)
    assert words[:5] == ["cox", "crds", "|", "kubectl", "apply"]
    assert words[5:9] == ["--kubeconfig", str(kubeconfig), "--context", "at here"]


@pytest.mark.parametrize("name", ["-w", "--json", "my runs", "it's"])
def test_a_work_directory_of_any_name_can_be_typed_as_it_is_printed(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name / "cluster").mkdir(parents=True)
    (tmp_path / name / "steps.jsonl").touch()
    lines = list(summary({"metadata": {"name": "demo"}, "status": {}}, Path(name)))
    (report,) = [line.partition("cox ")[2] for line in lines if "cox report" in line]
    code, said = cox(*shlex.split(report))
    assert (code, said.strip()) == (0, str(FolderReader(Path(name)).report_path)), said
    _, said = cox("logs", f"./{name}")
    assert "holds no TrainingJob" in cox(*hint(said)[1:])[1]
