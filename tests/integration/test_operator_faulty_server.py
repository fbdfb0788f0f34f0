"""A job's lifecycle behind a server that fails in every way: the baseline's end, and nothing created twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.integration.apiserver import ApiServer
from tests.integration.fault_proxy import Break, Call, Cut, Delay, FaultProxy, Lose, Plan, Refuse, drawn, every
from tests.integration.lifecycle import Performance, Stage
from tests.integration.operator_parts import operating
from tests.integration.sidebyside import Outcome, all_lived

AT_ONCE = 5
CALM, SHORT = 30.0, 2.0  # seconds of silence after which the operator takes a watch for dead; 70 outside of tests


def any_call(call: Call) -> bool:
    return True


def writes(call: Call) -> bool:
    return call.writing


def status_writes(call: Call) -> bool:
    return call.method == "PATCH"


def creates(call: Call) -> bool:
    return call.method == "POST"


def lists(call: Call) -> bool:
    return call.listing


def watches(call: Call) -> bool:
    return call.watch


def no_watch(call: Call) -> bool:
    return not call.watch


PLANS: dict[str, Plan] = {
    "every third status write is a conflict": every(3, status_writes, Refuse(409, "Conflict")),
    "every third create finds the name taken": every(3, creates, Refuse(409, "AlreadyExists")),
    "every second watch is too old at once": every(2, watches, Refuse(410)),
    "every second watch becomes too old": every(2, watches, Break("expired", 2)),
    "every tenth call is one too many": every(10, any_call, Refuse(429, after=1)),
    "every third call is an internal error": every(3, any_call, Refuse(500)),
    "every third call finds no server": every(3, any_call, Refuse(503)),
    "every third call is out of time": every(3, any_call, Refuse(504)),
    "every third answer is cut": every(3, no_watch, Cut()),
    "every third write is done and not answered": every(3, writes, Lose()),
    "every second watch falls silent": every(2, watches, Break("silent", 1)),
    "every second watch tears a line": every(2, watches, Break("torn", 1)),
    "every second watch is reset": every(2, watches, Break("reset", 1)),
    "every second watch reports an error": every(2, watches, Break("error", 1)),
    "every second watch ends early": every(2, watches, Break("ended", 0)),
    "every list is slow": every(1, lists, Delay(1.0)),
    **{f"drawn, seed {seed}": drawn(seed, 0.2) for seed in range(4)},
}


async def lived(proxy: FaultProxy, plan: Plan | None, silence: float, stage: Stage) -> None:
    """A whole life; the operator reaches the server through the proxy, all others directly."""
    if plan is not None:
        proxy.plans[stage.namespace] = plan
    async with operating(proxy.kubeconfig, stage.namespace, stage.coordinator, silence):
        performance = Performance(stage, deadline=120)
        while await asyncio.to_thread(performance.goes_on):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


# Of answers, of broken watches and of draws some are quick. How a watch may end is in tests/unit/test_operator_informer.py
# too, and what a server that goes on failing means in test_operator_faults.py.
LONG = {
    *(
        "every third call is an internal error",
        "every third call is out of time",
        "every second watch is too old at once",
    ),
    *("every second watch is reset", "every second watch reports an error", "every second watch ends early"),
    *("drawn, seed 1", "drawn, seed 2", "drawn, seed 3"),
}


@pytest.fixture(scope="module")
def outcomes(
    api: ApiServer, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Outcome]:
    """Of the plans whose tests are selected."""
    names = {item.callspec.params["name"] for item in request.session.items if item.path == request.path}  # type: ignore[attr-defined]
    return asyncio.run(_outcomes(api, tmp_path_factory.mktemp("proxy"), names))


async def _outcomes(api: ApiServer, folder: Path, names: set[str]) -> dict[str, Outcome]:
    async with FaultProxy(api, folder) as proxy:
        plans = {"baseline": None, **{name: plan for name, plan in PLANS.items() if name in names}}
        runs = {name: partial(lived, proxy, plan, silence_of(name)) for name, plan in plans.items()}
        return await all_lived(api, runs, AT_ONCE)


def silence_of(name: str) -> float:
    """Where no watch falls silent for ever, waiting for one that has nothing to say is right."""
    return SHORT if "silent" in name or "drawn" in name else CALM


@pytest.mark.timeout(900)  # the first test waits for all runs
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in PLANS])
def test_a_faulty_server_changes_neither_the_end_nor_what_is_made(outcomes: dict[str, Outcome], name: str) -> None:
    outcome, baseline = outcomes[name], outcomes["baseline"]
    assert outcome.error is None
    assert outcome.created - baseline.created == Counter()
    assert outcome.result == baseline.result
