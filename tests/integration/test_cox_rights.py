"""What a user may do, by docs/security.md, is what `cox status`, `cox report` and `cox logs` need: no less and no more."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

import pytest

from tests.integration.scene import Scene, bind, user

pytestmark = pytest.mark.binaries("helm")

ROOT = Path(__file__).parents[2]
NUMBERS = itertools.count()
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def documented_rights() -> list[tuple[str, str]]:
    """Verb and resource, from the sentence on what the three commands need."""
    text = " ".join((ROOT / "docs/security.md").read_text().split())
    (sentence,) = re.findall(r"need of a cluster no more than `view` grants: (.*?)\. ", text)
    clauses = re.findall(r"((?:`(?:get|list)`(?: and )?)+) of (.*?)(?=, `(?:get|list)`|$)", sentence)
    words = [(re.findall("`(.+?)`", verbs), re.findall("`(.+?)`", resources)) for verbs, resources in clauses]
    return [(verb, resource) for verbs, resources in words for resource in resources for verb in verbs]


RIGHTS = documented_rights()


def with_rights(scene: Scene, folder: Path, rights: list[tuple[str, str]]) -> Path:
    """A user with a Role of exactly these."""
    name = f"exact-{next(NUMBERS)}"
    rules = [
        {"apiGroups": ["coxswain.dev" if resource == "trainingjobs" else ""], "resources": [resource], "verbs": [verb]}
        for verb, resource in rights
    ]
    role = {"metadata": {"name": name}, "rules": rules}
    place = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{scene.namespace}/roles"
    assert scene.api.http.post(place, json=role).is_success
    access = user(scene.api, scene.namespace, folder, name)
    bind(scene.api, scene.namespace, name, name, "Role")
    verb, (resource, _, subresource) = rights[0][0], rights[0][1].partition("/")
    asked = {"namespace": scene.namespace, "verb": verb, "group": rules[0]["apiGroups"][0], "resource": resource}
    subject = f"system:serviceaccount:{scene.namespace}:{name}"
    review = {"spec": {"user": subject, "resourceAttributes": {**asked, "subresource": subresource}}}
    end = time.monotonic() + 30
    while not scene.api.http.post(REVIEWS, json=review).json()["status"][
        "allowed"
    ]:  # the authorizer learns of it by a watch
        assert time.monotonic() < end
        time.sleep(0.01)
    return access


def answers(scene: Scene, folder: Path, access: Path) -> dict[str, tuple[int, str]]:
    commands = {"list": ["status"], "status": ["status", "demo"], "logs": ["logs", "demo"]}
    commands["report"] = ["report", "demo", "--output", str(folder / "r.html")]
    return {name: scene.cox(*words, access=access) for name, words in commands.items()}


@pytest.mark.usefixtures("keys")
def test_the_rights_that_the_page_on_security_names_are_enough(scene: Scene, tmp_path: Path) -> None:
    found = answers(scene, tmp_path, with_rights(scene, tmp_path, RIGHTS))
    assert {name: code for name, (code, _) in found.items()} == dict.fromkeys(found, 0), found
    assert "forbidden" not in found["report"][1]


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("left_out", RIGHTS, ids=" ".join)
def test_each_right_that_the_page_on_security_names_is_needed(
    scene: Scene, tmp_path: Path, left_out: tuple[str, str]
) -> None:
    rights = [right for right in RIGHTS if right != left_out]
    found = answers(scene, tmp_path, with_rights(scene, tmp_path, rights))
    assert any("is forbidden: User" in said for _, said in found.values()), found


def test_a_report_without_the_right_to_configmaps_has_the_rest_and_says_what_is_missing(
    scene: Scene, tmp_path: Path
) -> None:
    rights = [right for right in RIGHTS if right[1] != "configmaps"]
    code, said = answers(scene, tmp_path, with_rights(scene, tmp_path, rights))["report"]
    assert (code, "no settings of the job, such as its mix: " in said, "configmaps is forbidden" in said) == (
        0,
        True,
        True,
    )
    assert "GangStarted" in (tmp_path / "r.html").read_text()


@pytest.mark.usefixtures("keys")
def test_without_the_rights_to_pods_and_events_the_rest_is_shown_and_says_what_is_missing(
    scene: Scene, tmp_path: Path
) -> None:
    found = answers(scene, tmp_path, with_rights(scene, tmp_path, [("get", "trainingjobs")]))
    code, said = found["status"]
    assert (code, said.startswith("demo: Running\n"), "  no pods: GET " in said) == (0, True, True), said
    assert "  step        12/100, loss 4.5678" in said
    code, said = found["report"]
    assert (code, "no events: GET " in said, "no settings of the job, such as its mix: GET " in said) == (0, True, True)
    assert [found[command][0] for command in ("list", "logs")] == [2, 2], "nothing of these is left"
