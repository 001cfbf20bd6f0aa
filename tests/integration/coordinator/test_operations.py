"""What an operator and the owner of a node can see of a coordinator without its database."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from covey import cli
from covey.errors import TransientError
from tests.fakes.network import CoordinatorHarness
from tests.fakes.pool import make_address
from tests.integration.coordinator.handing import decide, hand_in

pytestmark = pytest.mark.integration


async def get(harness: CoordinatorHarness, path: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.get(harness.url + path)


async def test_ready__all_answer__is_200_and_health_too(harness: CoordinatorHarness):
    await harness.follow()
    ready = await get(harness, "/ready")
    assert (ready.status_code, ready.json()) == (200, {"is_ready": True, "reasons": []})
    assert (await get(harness, "/health")).json() == {"pool": harness.ctx.ledger.pool}


async def test_ready__chain_and_database_do_not_answer__says_both_and_lives(
    harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
):
    await harness.follow()

    async def hang(work: object) -> None:
        raise TransientError("database_busy", "the database was busy for too long")

    monkeypatch.setattr(harness.ctx.chain, "_polled_at", None)
    monkeypatch.setattr(harness.ctx.database, "query", hang)
    ready = await get(harness, "/ready")
    assert ready.status_code == 503
    assert [reason.split(" ")[1] for reason in ready.json()["reasons"]] == ["database", "chain's"]
    assert (await get(harness, "/health")).status_code == 200


async def test_metrics__after_some_work__count_it(harness: CoordinatorHarness):
    before = await asyncio.to_thread(harness.read_metrics)  # Other tests of this file may have come first.

    def count(*name: str) -> float:
        return samples[name] - before.get(name, 0)

    async with harness.client("node") as node:
        await hand_in(harness, node)
    await decide(harness)
    await harness.follow()
    await get(harness, "/v1/nothing")
    await harness.post("/v1/heartbeat", b"{}", {})
    samples = await asyncio.to_thread(harness.read_metrics)
    assert samples["covey_submissions", "ACCEPTED"] == 1
    assert samples["covey_unsettled_submissions",] == 1
    assert samples["covey_refusals_total", "unsigned"] >= 1
    assert samples["covey_answers_total", "4xx"] >= 1
    assert samples["covey_commit_seconds_count",] >= 2
    assert count("covey_command_seconds_count", "record_receipts") == 1
    assert count("covey_request_seconds_count", "POST /v1/submissions") == 1
    assert count("covey_request_seconds_count", "none") == 1, "/v1/nothing is not a label that a peer has chosen"
    assert samples["covey_rpc_seconds_count", "eth_call"] > 0
    assert samples["covey_operator_balance_ether",] > 0
    assert samples["covey_database_answers",] == 1
    assert samples["covey_chain_poll_age_seconds",] < 60
    assert samples["covey_step",] == 0


async def test_metrics__database_does_not_answer__says_so_and_all_else(
    harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
):
    await harness.follow()

    def refuse() -> None:
        raise TransientError("database_unavailable", "gone")

    monkeypatch.setattr(harness.ctx.database, "read", refuse)
    samples = await asyncio.to_thread(harness.read_metrics)
    assert samples["covey_database_answers",] == 0
    assert ("covey_step",) not in samples
    assert ("covey_chain_poll_age_seconds",) in samples


async def test_worker_status__node_that_does_not_ask__is_told_so(harness: CoordinatorHarness):
    async with harness.client("node") as node:
        await hand_in(harness, node)
    address = harness.wallet("node").address
    arguments = ["worker", "status", address, "--coordinator-url", harness.url]
    result = await asyncio.to_thread(CliRunner().invoke, cli.app, [*arguments, "--json"])
    shown = json.loads(result.stdout)
    assert (shown["node"], shown["health"], shown["why"]) == (address, "healthy", "not_asking")
    assert "does not ask for a task" in shown["sentence"]
    printed = await asyncio.to_thread(CliRunner().invoke, cli.app, arguments)
    assert "does not ask for a task" in printed.stdout
    arguments[2] = make_address("stranger")
    result = await asyncio.to_thread(CliRunner().invoke, cli.app, arguments)
    assert getattr(result.exception, "code", "") == "no_node"


async def test_rewards_statement__some_work__is_listed_page_by_page(
    harness: CoordinatorHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("covey.console.account.PAGE", 1)
    for content in (b"first", b"second"):
        async with harness.client("node") as node:
            await hand_in(harness, node, content)
        await decide(harness)
    harness.run_job("settle")
    await harness.follow()
    await harness.follow()
    harness.chain.deployment.save(tmp_path / "deployment.json")
    who = harness.chain.address("contributor")
    arguments = ["rewards", "statement", who, "--coordinator-url", harness.url]
    arguments += ["--deployment", str(tmp_path / "deployment.json"), "--pool", str(harness.ctx.ledger.pool)]
    result = await asyncio.to_thread(CliRunner().invoke, cli.app, [*arguments, "--json"])
    assert result.exception is None, result.exception
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["state"], line["epoch"], line["pay"]) for line in lines] == [("SETTLED", 0, 60)] * 2
    assert lines[0]["task"] > lines[1]["task"]
    assert {line["epoch_transaction"] for line in lines} == {lines[0]["epoch_transaction"]} - {None}
    printed = await asyncio.to_thread(CliRunner().invoke, cli.app, arguments)
    assert len(printed.stdout.splitlines()) == 3


async def test_find_pages__coordinator_and_another_server__name_their_pages(harness: CoordinatorHarness):
    async with harness.client("stranger") as client:
        assert await client.find_pages() == harness.ctx.config.pages_base_url
