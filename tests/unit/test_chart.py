"""The chart's templates say the same as crds/, behind its two switches."""

import pytest
import yaml

from coxswain.api.crd import crds
from coxswain.api.generate import REPOSITORY

TEMPLATES = REPOSITORY / "charts" / "coxswain" / "templates"
KEEP = {"annotations": {"helm.sh/resource-policy": "keep"}}


def rendered(text: str) -> dict:
    """Both switches on: the template without its actions."""
    return yaml.safe_load("\n".join(line for line in text.splitlines() if not line.startswith("{{-")))


@pytest.mark.parametrize("crd", crds(), ids=lambda crd: crd["spec"]["names"]["kind"])
def test_a_template_renders_to_its_crd_kept_on_uninstall(crd):
    text = (TEMPLATES / f"{crd['metadata']['name']}.yaml").read_text()
    expected = crd | {"metadata": crd["metadata"] | KEEP}
    assert rendered(text) == yaml.safe_load(yaml.safe_dump(expected))


@pytest.mark.parametrize("crd", crds(), ids=lambda crd: crd["spec"]["names"]["kind"])
def test_the_switches_enclose_what_they_switch(crd):
    lines = (TEMPLATES / f"{crd['metadata']['name']}.yaml").read_text().splitlines()
    actions = [line for line in lines if line.startswith("{{-")]
    assert actions == ["{{- if .Values.crds.enabled }}", "{{- if .Values.crds.keep }}", "{{- end }}", "{{- end }}"]
    keep = lines.index("{{- if .Values.crds.keep }}")
    assert lines[keep + 1 : keep + 4] == ["  annotations:", "    helm.sh/resource-policy: keep", "{{- end }}"]


def test_every_crd_has_a_template_and_nothing_else_has():
    assert {p.stem for p in TEMPLATES.glob("*.yaml")} == {crd["metadata"]["name"] for crd in crds()}
