"""What docs/security.md and the alerts' pages say is what the chart does."""

from __future__ import annotations

import re

import pytest
import yaml

from coxswain.api.generate import REPOSITORY
from tests.charts import CHART, of_kind, operator_rights

pytestmark = pytest.mark.binaries("helm")

DOCS = REPOSITORY / "docs"


def table(name: str) -> str:
    """The rules of the operator's role `coxswain-NAME`, as the page has them."""
    (role,) = [
        m
        for m in of_kind(operator_rights({"quarantine": {"enabled": True}}), "Role", "ClusterRole")
        if m["metadata"]["name"].endswith(f"coxswain-{name}")
    ]
    return "\n".join(["| group | resources | verbs |", "|---|---|---|", *(row(rule) for rule in role["rules"])])


def row(rule: dict[str, list[str]]) -> str:
    named = "".join(f" `{name}`" for name in rule.get("resourceNames", ()))
    return f"| {rule['apiGroups'][0] or 'core'} | {', '.join(rule['resources'])}{named} | {', '.join(rule['verbs'])} |"


@pytest.mark.parametrize("name", ["jobs", "lease", "nodes", "quarantine"])
def test_the_security_page_lists_the_operators_rights(name: str) -> None:
    page = (DOCS / "security.md").read_text()
    assert f"<!-- rights: {name} -->\n\n{table(name)}\n" in page, f"the table should be:\n{table(name)}"


def test_every_alert_has_its_paragraph() -> None:
    anchors = {alert["anchor"] for alert in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())}
    titles = re.findall(r"^#+ (.+)$", (DOCS / "operations.md").read_text(), re.MULTILINE)
    assert anchors - {title.lower().replace(" ", "-") for title in titles} == set()


@pytest.mark.parametrize(
    "page", ["install.md", "security.md", "operations.md", "reference/api.md", "../charts/coxswain/README.md"]
)
def test_no_link_of_a_page_is_broken(page: str) -> None:
    file = DOCS / page
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read_text())
    assert [link for link in links if not (file.parent / link).exists()] == []
