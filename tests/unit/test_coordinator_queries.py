"""A query that is of another kind than its field is the caller's fault: 400, with field, value and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from coxswain.wire import GENERATION_HEADER
from coxswain_coordinator.api.handlers import Handlers
from coxswain_link.http_server import HttpService
from coxswain_link.queries import BadQuery, seconds, text, whole
from tests.unit.coordinator_fakes import TOKEN
from tests.unit.coordinator_lead import Lead, small, training
from tests.unit.crash_simulation import Call

pytestmark = pytest.mark.looptime

NEEDED = {
    "/v1/world": {}, "/v1/rendezvous": {"generation": 1}, "/v1/shares": {"loader": "loader-0"}, "/v1/blocks": {"source": "code"},
    "/v1/plans": {"from": 0}, "/v1/steps": {"step": 0}, "/v1/report": {},
}  # fmt: skip
"""The long polls, each with what it needs."""
NUMBERS = [
    ("/v1/world", "after"), ("/v1/rendezvous", "generation"), ("/v1/blocks", "from"), ("/v1/plans", "from"),
    ("/v1/plans", "rank"), ("/v1/steps", "step"), ("/v1/steps", "rank"),
]  # fmt: skip


async def answer(lead: Lead, path: str, query: dict[str, Any], generation: Any = None) -> web.StreamResponse:
    service = HttpService(TOKEN, lambda: lead.state.generation, lead.state.metrics)
    Handlers(lead.state, lead.driver.ack_end).routes(service)
    (route,) = [r for r in service.app.router.routes() if r.method == "GET" and r.resource.canonical == path]
    return await route.handler(Call("GET", path, None, generation, query))


async def refused(lead: Lead, path: str, query: dict[str, Any], generation: Any = None) -> str:
    found = await answer(lead, path, query, generation)
    assert found.status == 400
    assert isinstance(found, web.Response) and found.text
    return found.text


@pytest.mark.parametrize(("path", "field"), NUMBERS)
@pytest.mark.parametrize("value", ["soon", "", "1.5", "-1", "1e9", "9" * 5000])
async def test_a_query_that_is_no_whole_number_is_answered_400_with_field_value_and_what_is_allowed(
    tmp_path, path, field, value
):
    async with training(small(tmp_path)) as lead:
        says = await refused(lead, path, NEEDED[path] | {field: value})
        assert says == f"{field} is {value[:80]!r}; use a whole number from 0 on"


@pytest.mark.parametrize("path", NEEDED)
@pytest.mark.parametrize("value", ["soon", "", "-1", "nan"])
async def test_a_wait_that_is_no_number_of_seconds_is_answered_400(tmp_path, path, value):
    async with training(small(tmp_path)) as lead:
        says = await refused(lead, path, NEEDED[path] | {"wait": value})
        assert says == f"wait is {value!r}; use a number of seconds from 0 on"


@pytest.mark.parametrize(("path", "field"), [(path, field) for path, needed in NEEDED.items() for field in needed])
async def test_a_query_without_a_field_that_its_path_needs_is_answered_400(tmp_path, path, field):
    async with training(small(tmp_path)) as lead:
        assert (await refused(lead, path, {})).startswith(f"{field} is missing; use a ")


@pytest.mark.parametrize("path", NEEDED)
async def test_a_generation_that_is_no_whole_number_is_answered_400(tmp_path, path):
    async with training(small(tmp_path)) as lead:
        says = await refused(lead, path, NEEDED[path], "soon")
        assert says == f"{GENERATION_HEADER} is 'soon'; use a whole number from 0 on"


@pytest.mark.parametrize("path", NEEDED)
async def test_a_query_with_all_that_its_path_needs_is_answered(tmp_path, path):
    async with training(small(tmp_path)) as lead:
        assert (await answer(lead, path, NEEDED[path] | {"wait": "0.5"}, 1)).status in (200, 204)


@pytest.mark.parametrize(
    ("read", "values", "found"),
    [
        (whole, {"n": "0"}, 0), (whole, {"n": "12"}, 12), (seconds, {"n": "0"}, 0.0), (seconds, {"n": "1.5"}, 1.5),
        (seconds, {"n": "inf"}, float("inf")), (text, {"n": ""}, ""), (text, {"n": "x"}, "x"),
    ],
)  # fmt: skip
def test_a_value_of_the_fields_kind_is_read(read, values, found):
    assert read(values, "n") == found


@pytest.mark.parametrize("read", [whole, seconds])
def test_a_missing_field_has_its_default_and_without_one_is_named(read):
    assert read({}, "n", 7) == 7
    with pytest.raises(BadQuery, match="n is missing; use a"):
        read({}, "n")
