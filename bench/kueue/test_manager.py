"""Kueue's manifests are moved to this machine, and nothing else of them is changed."""

from __future__ import annotations

from bench.kueue.manager import converted, of_our_kinds

CLIENT = {"url": "https://127.0.0.1:1/convert", "caBundle": "Y2E="}


def test_only_kinds_of_several_versions_are_converted() -> None:
    one = {"spec": {"versions": [{"name": "v1beta2"}]}}
    two = {"spec": {"group": "g", "versions": [{"name": "v1beta1"}, {"name": "v1beta2"}]}}
    assert converted(one, CLIENT) is one
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": CLIENT}
    assert converted(two, CLIENT)["spec"] == {**two["spec"], "conversion": {"strategy": "Webhook", "webhook": webhook}}


def test_webhooks_of_other_kinds_of_jobs_are_left_out() -> None:
    hooks = [{"name": g, "rules": [{"apiGroups": [g]}]} for g in ("", "batch", "kueue.x-k8s.io", "ray.io")]
    kept = of_our_kinds({"kind": "ValidatingWebhookConfiguration", "webhooks": hooks})["webhooks"]
    assert [h["name"] for h in kept] == ["", "kueue.x-k8s.io"]
