"""Every rule accepts and refuses one object each, with equal messages on server and offline."""

from __future__ import annotations

import re
from typing import Any

import pytest

from coxswain.api.kinds import BY_NAME
from coxswain.api.rules import RULES
from coxswain.api.validate import check
from tests.api_samples import Manifest, sample
from tests.integration.apiserver import ApiServer
from tests.integration.rule_cases import CASES, Case

Verdict = set[tuple[str, str]]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.rule}")


def test_every_rule_has_a_case_at_every_place() -> None:
    needed = {(rule.name, place.partition(":")[0]) for rule in RULES for place in rule.places}
    assert {(case.rule, case.kind) for case in CASES} == needed


@each_case
def test_the_server_accepts_what_the_rule_allows(api: ApiServer, case: Case) -> None:
    new, old = accepted(case)
    assert ask(api, new, old) == set()


@each_case
def test_the_server_refuses_what_the_rule_forbids_in_its_words(api: ApiServer, case: Case) -> None:
    new, old = refused(case)
    path = "" if case.path == "metadata.name" else case.path  # the server names no field within metadata
    assert (path, case.message) in ask(api, new, old)


@each_case
def test_the_offline_check_says_what_the_server_says(api: ApiServer, case: Case) -> None:
    for new, old in (accepted(case), refused(case)):
        offline = {
            (fault.path.removeprefix("metadata.name"), f"{fault.message}; {fault.way_out}") for fault in check(new, old)
        }
        assert offline == ask(api, new, old)


def accepted(case: Case) -> tuple[Manifest, Manifest | None]:
    """What the rule lets pass: of a rule for running jobs, the same change in a suspended one."""
    suspended = {"spec.suspend": True} if case.rule.endswith("-suspended") else {}
    old = sample(case.kind, {**case.before, **suspended}) if case.before is not None else None
    return sample(case.kind, {**case.accept, **suspended}), old


def refused(case: Case) -> tuple[Manifest, Manifest | None]:
    old = sample(case.kind, case.before) if case.before is not None else None
    return sample(case.kind, case.refuse), old


def ask(api: ApiServer, new: Manifest, old: Manifest | None) -> Verdict:
    """The server's faults with `new`: created, or as an update of `old`. Nothing stays."""
    collection = api.path(BY_NAME[new["kind"]].plural)
    if old is None:
        return verdict(api.http.post(collection, json=new, params={"dryRun": "All", "fieldValidation": "Strict"}))
    stored = api.http.post(collection, json=old)
    assert stored.status_code == 201, stored.text
    place = f"{collection}/{old['metadata']['name']}"
    try:
        version = stored.json()["metadata"]["resourceVersion"]
        body = {**new, "metadata": {**new["metadata"], "resourceVersion": version}}
        return verdict(api.http.put(place, json=body, params={"dryRun": "All", "fieldValidation": "Strict"}))
    finally:
        api.http.delete(place)


_BEFORE = re.compile(r'^Invalid value: (?:"object": )?')
"""Servers before 1.35 also name the kind of what is refused."""


def verdict(answer: Any) -> Verdict:
    """(field, message) of every cause, without what the server puts before a rule's words."""
    if answer.is_success:
        return set()
    assert answer.status_code == 422, answer.text
    causes = answer.json()["details"]["causes"]
    return {(cause["field"].removeprefix("<nil>"), _BEFORE.sub("", cause["message"])) for cause in causes}
