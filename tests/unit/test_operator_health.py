"""Health of the operator: lag of its event loop, limits, and what it serves."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
import typer
from typer.testing import CliRunner

from coxswain.api.dashboards import OPERATOR
from coxswain.exits import Exit
from coxswain.names import host_port
from coxswain_link.metrics import MetricsRegistry, build
from coxswain_operator.cluster import Conflict
from coxswain_operator.health import LONGEST_SILENCE, LONGEST_STALL, HealthStatus, LoopLag, serve_health
from coxswain_operator.process import main, measured

METRICS = ("leader", "jobs", "queue_seconds", "silence_seconds", "loop_lag_seconds")


async def test_a_loop_that_was_held_up_is_reported_and_fades_with_time() -> None:
    now = 100.0
    lag = LoopLag(nap=0, clock=lambda: now)
    measuring = asyncio.create_task(lag.measure())
    await asyncio.sleep(0)
    now += 0.5  # the loop is blocked
    await asyncio.sleep(0)
    assert "the event loop was up to 0.50 s late" in HealthStatus(lag=lag.seconds).text
    for _ in range(10):
        await asyncio.sleep(0)
    assert lag.seconds == pytest.approx(0.5 * 0.9**10)
    measuring.cancel()
    with suppress(asyncio.CancelledError):
        await measuring


@pytest.mark.looptime
async def test_a_nap_itself_is_no_lag() -> None:
    looks: list[float] = []
    lag = LoopLag(clock=lambda: looks.append(asyncio.get_running_loop().time()) or looks[-1])
    assert lag.seconds == 0.0
    measuring = asyncio.create_task(lag.measure())
    await asyncio.sleep(10.5)
    measuring.cancel()
    assert (lag.seconds, len(looks)) == (pytest.approx(0.0), 21)


@pytest.mark.parametrize(
    ("measured", "problem"),
    [
        ({"silence": 180.5}, "a watch has been silent for 180 s; at most 180 are normal"),
        ({"stalled": 301}, "jobs wait, and no pass has ended for 301 s; at most 300 are normal"),
        ({"unrenewed": 61}, "the Lease was last renewed 61 s ago; at most 60 are normal"),
        ({"unrenewed": 241, "renew": 120}, "the Lease was last renewed 241 s ago; at most 240 are normal"),
        ({"unrenewed": 110, "renew": 120}, ""),  # --retry-seconds 100: nothing is wrong
        ({"silence": 180, "waiting": 9999, "stalled": 300, "unrenewed": 60, "lag": 9}, ""),
    ],
)
async def test_a_silent_stream_a_waiting_job_and_an_old_lease_are_problems_with_their_seconds(
    measured: dict[str, Any], problem: str
) -> None:
    status = HealthStatus(**measured)
    assert (status.problem, status.text.splitlines()[0]) == (problem, problem or "ok")
    leads = "unrenewed" in measured
    assert ("this operator is not the leader" in status.text) is not leads
    assert (f"the Lease was renewed {status.unrenewed:.1f} s ago" in status.text) is leads


@pytest.mark.parametrize("place", ["127.0.0.1", "::1"])
async def test_a_pod_with_an_address_of_either_family_answers_its_probes(place: str) -> None:
    """Where pods have IPv6 alone, a kubelet that gets no answer would restart the operator without end."""
    default = inspect.signature(main).parameters["host"].default
    runner = await serve_health(default, 0, lambda now: HealthStatus(), MetricsRegistry("operator"))
    url = f"http://{host_port(place, runner.addresses[0][1])}/healthz"
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        assert answer.status == 200
    await runner.cleanup()


@pytest.mark.parametrize(("option", "value"), [("--port", "65536"), ("--port", "-1"), ("--quarantine-limit", "-1")])
def test_an_option_out_of_its_bounds_is_refused_by_its_name_before_anything_starts(option: str, value: str) -> None:
    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, [f"{option}={value}", "--kubeconfig=/nowhere"])
    assert result.exit_code == Exit.USER_FAULT
    assert option in result.stderr and "equal to" in result.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_host_that_is_named_is_the_only_one_that_is_listened_on(host: str) -> None:
    runner = await serve_health(host, 0, lambda now: HealthStatus(), MetricsRegistry("operator"))
    assert [address[0] for address in runner.addresses] == [host]
    await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "code", "values"),
    [
        (HealthStatus(), 200, (0, 0, 0, 0, 0)),
        (HealthStatus(3.0, 4.0, 0.0, 5.0, 6, 0.5), 200, (1, 6, 4, 3, 0.5)),
        (HealthStatus(200.0, 4.0, 0.0, 5.0, 6, 0.5), 503, (1, 6, 4, 200, 0.5)),
    ],
)
async def test_health_and_metrics_are_served_while_the_operator_is_ready(
    status: HealthStatus, code: int, values: tuple[float, ...]
) -> None:
    runner = await serve_health("127.0.0.1", 0, lambda now: status, MetricsRegistry("operator"))
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as http:
            answers = {path: await http.get(path) for path in ("/healthz", "/readyz", "/metrics")}
            texts = {path: await answer.text() for path, answer in answers.items()}
    finally:
        await runner.cleanup()
    assert [answer.status for answer in answers.values()] == [code, 200, 200]
    assert (texts["/healthz"], texts["/readyz"]) == (status.text, "ready\n")
    assert answers["/metrics"].headers["Content-Type"] == "text/plain; charset=utf-8"
    for name, value in zip(METRICS, values, strict=True):
        assert f"\ncoxswain_operator_{name} {float(value)}\n" in texts["/metrics"]


def test_the_panels_of_the_operator_name_the_limits_that_end_it_and_those_alone() -> None:
    said = {panel.title: panel.description for panel in OPERATOR.panels}
    for limit, status in ((LONGEST_SILENCE, HealthStatus(silence=181)), (LONGEST_STALL, HealthStatus(stalled=301))):
        assert f"at most {limit:.0f} are normal" in status.problem
    assert f"{LONGEST_SILENCE:.0f} s and more end the operator" in said["Quietest watch"]
    assert HealthStatus(waiting=1e6).problem == ""
    assert f"Only where no pass ends for {LONGEST_STALL:.0f} s does the operator end" in said["Longest wait"]


@pytest.mark.parametrize(("error", "result"), [(None, "ok"), (Conflict("stale"), "conflict"), (OSError(), "error")])
async def test_a_pass_is_counted_once_by_how_it_ended(error: Exception | None, result: str) -> None:
    """Passes that another writer has overtaken are harmless: they raise no alert."""

    async def reconcile(namespace: str, name: str) -> None:
        if error is not None:
            raise error

    registry, stub = build("operator"), SimpleNamespace(reconcile_job=reconcile)
    with suppress(Conflict, OSError):
        await measured(cast("Any", stub), registry)(("ns", "demo"))
    text = registry.exposition().decode()
    counts = {
        found: f'coxswain_reconcile_total{{result="{found}"}} 1.0' in text for found in ("ok", "conflict", "error")
    }
    assert [found for found, is_counted in counts.items() if is_counted] == [result]
    assert "coxswain_reconcile_seconds_count 1.0" in text
