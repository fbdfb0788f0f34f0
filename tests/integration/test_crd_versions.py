"""The way from one version of the kinds to the next, as docs/install.md says it, on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from coxswain.api.crd import crds
from coxswain.names import GROUP, VERSION
from e2e.cluster.process import wait_until
from tests.api_samples import Manifest, sample
from tests.integration.apiserver import ApiServer

NEXT, OURS = "v1beta1", "versions.test"  # a group of this test's own: other tests use the real one
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Kind:
    """A kind of ours in a group of the test's, in the versions that a release serves."""

    def __init__(self, api: ApiServer, crd: Manifest) -> None:
        self.api, self.kind = api, crd["spec"]["names"]["kind"]
        self.crd: Manifest = json.loads(json.dumps(crd).replace(GROUP, OURS))
        self.place = f"{CRDS}/{self.crd['metadata']['name']}"

    def release(self, stored: str, *served: str) -> Any:
        """The answer to a release in which each version has the same fields. Returns once the server works by it.

        A column of its own shows that it does: the server renews columns, served and stored versions together.
        """
        (version, *_) = self.crd["spec"]["versions"]
        column = "-".join((stored, *served))
        shown = [{"name": column, "type": "string", "jsonPath": ".metadata.name"}]
        versions = [
            {**version, "name": n, "served": True, "storage": n == stored, "additionalPrinterColumns": shown}
            for n in served
        ]
        known = self.api.http.get(self.place)
        spec = {**self.crd["spec"], "versions": versions, "conversion": {"strategy": "None"}}
        if known.status_code == 404:
            answer = self.api.http.post(CRDS, json={**self.crd, "spec": spec})
        else:
            answer = self.api.http.put(self.place, json={**known.json(), "spec": spec})
        if answer.is_success:
            wait_until(lambda: column in self.columns(stored), f"a server with {column}")
        return answer

    def columns(self, version: str) -> list[str]:
        table = self.api.http.get(self.path(version), headers=TABLE)
        return [found["name"] for found in table.json()["columnDefinitions"]] if table.status_code == 200 else []

    def path(self, version: str, name: str = "") -> str:
        scope = "namespaces/default/" if self.crd["spec"]["scope"] == "Namespaced" else ""
        return f"/apis/{OURS}/{version}/{scope}{self.crd['spec']['names']['plural']}/{name}".rstrip("/")

    def apply(self, version: str, name: str) -> None:
        manifest = {**sample(self.kind, name=name), "apiVersion": f"{OURS}/{version}"}
        answer = self.api.http.post(self.path(version), json=manifest)
        assert answer.status_code == 201, answer.text

    def specs(self, version: str) -> dict[str, Any]:
        return {
            item["metadata"]["name"]: item["spec"] for item in self.api.http.get(self.path(version)).json()["items"]
        }

    def rewrite(self, version: str) -> None:
        """As `kubectl get | kubectl replace` does, with the status that a migrator writes at the end."""
        for item in self.api.http.get(self.path(version)).json()["items"]:
            body = {"apiVersion": f"{OURS}/{version}", "kind": self.kind, **item}
            answer = self.api.http.put(self.path(version, item["metadata"]["name"]), json=body)
            assert answer.status_code == 200, answer.text
        merge = {"Content-Type": "application/merge-patch+json"}
        body = json.dumps({"status": {"storedVersions": [version]}})
        assert self.api.http.patch(f"{self.place}/status", content=body, headers=merge).status_code == 200


def kinds() -> Iterator[Any]:
    """Servers take seconds for the large schemas: two small kinds, one without a namespace, show the way in every run."""
    for crd in crds():
        name = crd["spec"]["names"]["kind"]
        yield pytest.param(crd, id=name, marks=() if name in ("DataMix", "NodeQuarantine") else pytest.mark.slow)


@pytest.mark.parametrize("crd", list(kinds()))
def test_three_releases_lead_from_one_version_to_the_next_and_no_object_is_lost(api: ApiServer, crd: Manifest) -> None:
    kind = Kind(api, crd)
    assert kind.release(VERSION, VERSION).status_code == 201
    kind.apply(VERSION, "old")
    assert kind.release(VERSION, VERSION, NEXT).status_code == 200
    kind.apply(NEXT, "new")
    both = kind.specs(VERSION)
    assert set(both) == {"old", "new"} and kind.specs(NEXT) == both
    assert kind.release(NEXT, VERSION, NEXT).status_code == 200
    refused = kind.release(NEXT, NEXT)
    assert refused.status_code == 422 and "storedVersions" in refused.text, "objects are stored as the old version"
    kind.rewrite(NEXT)
    assert kind.release(NEXT, NEXT).status_code == 200
    assert kind.specs(NEXT) == both
    assert api.http.get(kind.path(VERSION)).status_code == 404
    assert api.http.delete(kind.place).status_code == 200
