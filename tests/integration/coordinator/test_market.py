"""The market over a real chain: what operators announce, what their coordinators say, and what strangers try."""

import asyncio
import json
import socket

import pytest
from typer.testing import CliRunner

from covey import cli
from covey.chain.abi_codec import encode_values, load_artifact
from covey.chain.history import History
from covey.chain.json_rpc import Call
from covey.errors import OperatorError
from covey.network import market
from covey.network.market import ListedPool, PoolService, list_market, read_pool
from covey.protocol.hardware_needs import HardwareNeeds
from covey.protocol.prices import compute_reward, find_highest_price
from covey.runtime.http import find_free_ports
from tests.fakes.network import CoordinatorHarness, create_pool

pytestmark = pytest.mark.integration


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, list(arguments))
    if result.exception is not None:
        raise result.exception
    return result.stdout


def announce(harness: CoordinatorHarness, url: str, *, pool: int | None = None) -> None:
    pools = harness.chain.contracts.pools
    harness.chain.send("operator", pools.announce(pool or harness.ctx.ledger.pool, url))


async def read(harness: CoordinatorHarness, *, is_devnet: bool = True) -> ListedPool:
    history = History(client=harness.chain.client, contracts=harness.chain.contracts)
    pool = harness.ctx.ledger.pool
    return await asyncio.to_thread(lambda: read_pool(history, pool, is_devnet=is_devnet))


async def test_list_market__announced_url__is_asked_and_compared_with_the_chain(harness: CoordinatorHarness):
    assert (await read(harness)).service is PoolService.NOT_ANNOUNCED
    announce(harness, "https://old.example")
    announce(harness, harness.url)
    found = await read(harness)
    assert (found.service, found.trouble, found.url) == (PoolService.SERVED, "", harness.url)
    assert found.operator == harness.chain.address("operator")
    assert found.terms.reward_per_million == find_highest_price(harness.ctx.chain.prices)
    assert found.params == harness.ctx.params
    assert found.record is not None
    assert (found.record.pools, found.record.disabled_epochs) == (found.pool, 0)
    history = History(client=harness.chain.client, contracts=harness.chain.contracts)
    assert found.nodes == len(history.list_nodes(found.pool, harness.chain.address("contributor")))


async def test_list_market__coordinator_of_another_pool__is_shown_as_such(harness: CoordinatorHarness):
    pools = harness.chain.contracts.pools
    terms = pools.get_terms(harness.ctx.ledger.pool)
    validators = pools.get_validators(harness.ctx.ledger.pool)
    harness.chain.send("operator", pools.create_pool(terms, validators, harness.ctx.params_text))
    number = pools.count_pools()
    announce(harness, harness.url, pool=number)
    history = History(client=harness.chain.client, contracts=harness.chain.contracts)
    found = await asyncio.to_thread(lambda: list_market(history, is_devnet=True, everything=True))
    services = {each.pool: each.service for each in found.pools}
    assert services[number] is PoolService.OTHER
    assert harness.ctx.ledger.pool in services


async def test_list_market__nobody_listens_or_hangs__is_silent(
    harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
):
    (port,) = find_free_ports(1)
    announce(harness, f"http://127.0.0.1:{port}")
    assert (await read(harness)).service is PoolService.SILENT
    monkeypatch.setattr(market, "ASK_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", port)):  # It accepts, and says nothing.
        found = await read(harness)
    assert (found.service, "0 s" in found.trouble) == (PoolService.SILENT, True)


@pytest.mark.parametrize(
    "url", ["ftp://pool.example", "http://a b", "javascript:alert(1)", "http://me:secret@pool.example"]
)
async def test_list_market__url_that_is_none__is_not_asked(harness: CoordinatorHarness, url: str):
    announce(harness, url)
    assert (await read(harness)).service is PoolService.REFUSED


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "169.254.169.254", "10.0.0.1", "[::1]", "0.0.0.0"])
async def test_list_market__private_address_on_a_public_chain__is_not_asked(harness: CoordinatorHarness, host: str):
    """Otherwise anyone could have readers send requests into their own networks."""
    announce(harness, f"http://{host}:9")
    found = await read(harness, is_devnet=False)
    assert (found.service, "private" in found.trouble) == (PoolService.REFUSED, True)


async def test_announce__bytes_that_are_not_text__stop_no_follower(harness: CoordinatorHarness):
    """Anyone can create a pool and announce anything, and every coordinator of the deployment reads it."""
    item = load_artifact("PoolRegistry").functions["announce"]
    data = bytearray(item.digest[:4] + encode_values(item.inputs, (harness.ctx.ledger.pool, "URL", "0x" + "00" * 32)))
    data[data.index(b"URL")] = 0xFF
    registry = harness.chain.contracts.pools.address
    harness.chain.send("operator", Call(to=registry, data=bytes(data), label="PoolRegistry.announce"))
    await harness.follow()
    announce(harness, harness.url)
    assert (await read(harness)).service is PoolService.SERVED


async def test_read_pool__unknown_pool__is_named(harness: CoordinatorHarness):
    history = History(client=harness.chain.client, contracts=harness.chain.contracts)
    with pytest.raises(OperatorError, match="unknown_pool"):
        read_pool(history, 99, is_devnet=True)


async def test_market__command__prints_the_pool_and_what_a_machine_earns(harness: CoordinatorHarness, tmp_path):
    announce(harness, harness.url)
    file = tmp_path / "deployment.json"
    harness.chain.contracts.deployment.save(file)
    asked = ("--deployment", str(file), "--rpc", harness.chain.client.rpc_url, "--json")
    listed = json.loads(await asyncio.to_thread(invoke, "market", *asked))
    assert [each["service"] for each in listed["pools"]][:1] == ["served"]
    number = str(harness.ctx.ledger.pool)
    shown = json.loads(await asyncio.to_thread(invoke, "market", "show", number, *asked, "--tokens-per-second", "10"))
    assert shown["pay_per_hour"] == compute_reward(36_000, find_highest_price(harness.ctx.chain.prices))
    assert shown["stake"] == harness.chain.contracts.pools.get_terms(harness.ctx.ledger.pool).min_stake


async def test_market__fits__leaves_out_pools_that_ask_for_more_and_says_why(harness: CoordinatorHarness, tmp_path):
    needs = HardwareNeeds(min_memory_bytes=1 << 50, min_bandwidth_bits=10**9)
    needy = create_pool(harness.chain, harness.ctx.params.model_copy(update={"needs": needs}))
    file = tmp_path / "deployment.json"
    harness.chain.contracts.deployment.save(file)
    asked = ("--deployment", str(file), "--rpc", harness.chain.client.rpc_url)
    known = json.loads(await asyncio.to_thread(invoke, "market", *asked, "--json"))
    assert {harness.ctx.ledger.pool, needy} <= {each["pool"] for each in known["pools"]}
    (row,) = (each for each in known["pools"] if each["pool"] == needy)
    assert row["needs"] == needs.model_dump(mode="json") | {"models": []}
    fitting = ("market", *asked, "--fits", "--bandwidth", "100", "--sort", "earnings")
    shown = json.loads(await asyncio.to_thread(invoke, *fitting, "--json"))
    listed = {each["pool"] for each in shown["pools"]}
    assert harness.ctx.ledger.pool in listed
    assert needy not in listed
    memory, bandwidth = shown["misfits"][str(needy)]
    assert memory.startswith("The pool asks for 1048576.0 GiB of memory, and ")
    assert bandwidth == "The pool asks for 1000 Mbit/s of download, and this machine has 100 Mbit/s."
    printed = await asyncio.to_thread(invoke, *fitting)
    assert f"pool {needy} does not fit this machine: {memory} {bandwidth}" in printed
    one = await asyncio.to_thread(invoke, "market", "show", str(needy), *asked)
    assert "needs  1048576.0 GiB of memory per device; 1000 Mbit/s of download" in one
    assert f"misfits  {memory}" in one


async def test_market_history__operator_and_stranger__are_told_from_the_chain(harness: CoordinatorHarness, tmp_path):
    file = tmp_path / "deployment.json"
    harness.chain.contracts.deployment.save(file)
    asked = ("--deployment", str(file), "--rpc", harness.chain.client.rpc_url)
    operator = harness.chain.address("operator")
    told = json.loads(await asyncio.to_thread(invoke, "market", "history", operator, *asked, "--json"))
    assert told["operator"]["pools"] >= 1
    assert told["validator"] == {"pools": 0, "slashes": 0}
    contributor = harness.chain.address("contributor")
    told = json.loads(await asyncio.to_thread(invoke, "market", "history", contributor, *asked, "--json"))
    assert min(told["contributor"][name] for name in ("pools", "nodes")) >= 1
    assert told["operator"]["pools"] == 0
    unknown = await asyncio.to_thread(invoke, "market", "history", harness.wallet("nobody").address, *asked)
    assert unknown.startswith("the chain knows nothing about 0x")
