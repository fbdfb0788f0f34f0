"""Pages for users name only metrics, variables, labels, options, values and fields that exist; and every metric, event and
condition that exists is named.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from coxswain.api.validate import check
from coxswain.metrics import METRICS
from coxswain.names import CONDITIONS, EVENT_REASONS, LABEL_JOB_UID
from coxswain_cli.__main__ import COMMANDS, PLAN_COMMANDS
from tests.unit.fake_cluster import training_job
from tests.unit.test_reconcile_children import made

ROOT = Path(__file__).parents[2]
ALONE = ("README.md", "examples/README.md", "charts/coxswain/README.md")
PAGES = [
    *(ROOT / name for name in ALONE),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / "docs/reference").glob("*.md"),
]
PACKAGES = {f.name for f in ROOT.glob("*/coxswain*") if f.is_dir()}
WRITTEN = ("core", "operator", "runtime", "cli", "charts", "crds")
SECURITY = (ROOT / "docs" / "security.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
FILES = r"\.(py|ya?ml|jsonl?|html|md|weight|jinja|safetensors.*|dev|crt)$"
FOREIGN = {"metadata.name", "status.storedVersions", "step.state", "step.delivered_digest", "replica.stage"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())


@cache
def sources() -> str:
    kinds = (".py", ".yaml", ".tpl")
    return "\n".join(p.read_text() for root in WRITTEN for p in (ROOT / root).rglob("*") if p.suffix in kinds)


@each_page
def test_a_metric_of_a_page_is_exported(page: Path) -> None:
    """Words that end in `_` stand for all metrics that begin so."""
    names = {m.name for m in METRICS}
    series = {f"{m.name}_{part}" for m in METRICS if m.kind == "histogram" for part in ("bucket", "sum", "count")}
    said = set(re.findall(r"\bcoxswain_\w+", page.read_text())) - PACKAGES
    families = {word for word in said if word.endswith("_") and any(name.startswith(word) for name in names)}
    assert said - names - series - families == set()


def test_every_metric_is_named() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert [m.name for m in METRICS if f"`{m.name}`" not in page] == []


@each_page
def test_a_variable_of_a_page_is_read(page: Path) -> None:
    said = re.findall(r"\bCOXSWAIN_[A-Z_]+", page.read_text())
    assert [v for v in said if f'"{v}"' not in sources()] == []


@each_page
def test_a_label_or_an_annotation_of_a_page_is_written_or_read(page: Path) -> None:
    said = set(re.findall(r"\bcoxswain\.dev/[\w-]+", page.read_text()))
    assert [word for word in sorted(said) if not re.search(rf"{re.escape(word)}\b(?!-)", sources())] == []


def rows(title: str) -> list[str]:
    """What the first column of the table of a section of the operations page names."""
    _, _, rest = OPERATIONS.partition(f"\n## {title}\n")
    cells = re.findall(r"^\| (`[^|]*`) \|", rest.partition("\n## ")[0], re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_every_reason_of_an_event_has_its_row() -> None:
    assert sorted(rows("Events")) == sorted(EVENT_REASONS)


def test_every_condition_has_its_row() -> None:
    assert rows("Conditions") == list(CONDITIONS)


@cache
def options(command: str) -> frozenset[str]:
    """What a command of `cox` takes, as its help has it."""
    target, text = {**COMMANDS, **{f"plan {name}": c for name, c in PLAN_COMMANDS.items()}}[command]
    module, function = target.split(":")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(help=text)(getattr(importlib.import_module(module), function))
    shown = CliRunner().invoke(app, ["--help"]).output
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", shown))


def calls(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each `cox COMMAND` of a page, with the options behind it, in the same line and the same code."""
    known = "|".join(sorted([*COMMANDS, *(f"plan {name}" for name in PLAN_COMMANDS)], key=len, reverse=True))
    for command, rest in re.findall(rf"(?<![\w-])cox ({known})\b([^`|\n]*)", text.replace("\\\n", " ")):
        yield command, re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", rest)


@each_page
def test_an_option_of_a_page_is_one_of_its_command(page: Path) -> None:
    wrong = [
        (command, option)
        for command, found in calls(page.read_text())
        for option in found
        if option not in options(command)
    ]
    assert wrong == []


def test_options_of_pages_are_found() -> None:
    found = {(command, option) for page in PAGES for command, many in calls(page.read_text()) for option in many}
    assert {("run", "--set"), ("status", "--json"), ("plan step", "--lengths"), ("simulate", "--rivals")} <= found


def keys(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each value of a mapping."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield (*path, key)
        yield from keys(inner, (*path, key))


def fields(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each field of a schema; members of lists and mappings have that of their field."""
    for key, inner in schema.get("properties", {}).items():
        yield (*path, key)
        yield from fields(inner, (*path, key))
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        yield from fields(inner, path) if isinstance(inner, dict) else ()


@cache
def paths() -> frozenset[str]:
    """Fields of the kinds and values of the chart, from any level down."""
    chart = yaml.safe_load((ROOT / "charts/coxswain/values.yaml").read_text())
    kinds = [yaml.safe_load(file.read_text()) for file in (ROOT / "crds").glob("*.yaml")]
    schemas = [v["schema"]["openAPIV3Schema"] for kind in kinds for v in kind["spec"]["versions"]]
    every = [*keys(chart), *(path for schema in schemas for path in fields(schema))]
    return frozenset(".".join(path[n:]) for path in every for n in range(len(path)))


@each_page
def test_a_dotted_path_of_a_page_is_a_field_of_a_kind_or_a_value_of_the_chart(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    named = re.findall(r"`([a-z]\w*(?:\[\d*\])?(?:\.[a-z]\w*(?:\[\d*\])?)+)(?:[=:][^`\n]*)?`", text)
    said = {re.sub(r"\[\d*\]", "", name) for name in named} - FOREIGN
    ours = {name for name in said if not re.search(FILES, name) and name.split(".")[0] not in PACKAGES}
    assert sorted(ours - paths()) == []


def test_the_policy_for_a_closed_namespace_selects_the_pods_of_jobs_and_opens_them_to_each_other() -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?kind: NetworkPolicy.*?)^```$", SECURITY, re.DOTALL | re.MULTILINE)
    spec = yaml.safe_load(shown)["spec"]
    jobs = {"matchExpressions": [{"key": LABEL_JOB_UID, "operator": "Exists"}]}
    assert spec["podSelector"] == jobs
    assert spec["egress"][0] == {"to": [{"podSelector": jobs}]}


def test_the_chart_is_installed_with_values_that_exist() -> None:
    given = {key for page in PAGES for key in re.findall(r"--set(?:-string)? ([a-z][\w.]*)=", page.read_text())}
    assert "image.registry" in given
    assert sorted(key for key in given if key not in paths()) == []


def test_an_image_of_ours_that_a_page_names_has_the_tag_that_the_chart_asks_for() -> None:
    """Without a tag it is `latest`, which no page pushes."""
    version = yaml.safe_load((ROOT / "charts/coxswain/Chart.yaml").read_text())["appVersion"]
    named = [i for page in PAGES for i in re.findall(r"registry\.example/team/coxswain-[\w$]+\S*", page.read_text())]
    assert len(named) >= 3
    assert [image for image in named if not image.endswith(f":{version}")] == []


def requested(**spec: Any) -> dict[str, Any]:
    """Resources of each container of a job, by its name."""
    pods = [made(member, **spec)["spec"] for member in ("coordinator", "loader-0", "trainer-0")]
    return {c["name"]: c.get("resources") for pod in pods for c in (*pod["containers"], *pod.get("initContainers", ()))}


def test_the_requests_of_the_page_are_those_that_pods_get() -> None:
    said = re.findall(r"^\| `(\w+)` \| (\d+m) \| (\w+) \|", OPERATIONS, re.MULTILINE)
    assert [name for name, _, _ in said] == ["coordinator", "loader", "constructor"]
    given = requested()
    assert [given[name] for name, _, _ in said] == [{"requests": {"cpu": cpu, "memory": m}} for _, cpu, m in said]


def test_the_example_of_requests_fits_a_job_and_its_pods_get_them() -> None:
    (shown,) = re.findall(r"^```yaml\n(spec:\n  data:.*?)^```$", OPERATIONS, re.DOTALL | re.MULTILINE)
    example, job = yaml.safe_load(shown)["spec"], training_job()
    spec = {field: {**job["spec"].get(field, {}), **example[field]} for field in example}
    assert check({**job, "spec": {**job["spec"], **spec}}) == []
    asked = [*spec["data"]["template"]["spec"]["containers"], *spec["trainers"]["template"]["spec"]["initContainers"]]
    assert {c["name"]: c["resources"] for c in asked}.items() <= requested(**spec).items()
