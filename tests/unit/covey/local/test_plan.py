import re
import shlex
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from coordinator.config import CoordinatorConfig
from covey.local.plan import (
    PUBLIC_WINDOWS,
    NamedChain,
    PoolPlan,
    build_settings,
    find_shipped,
    find_short_windows,
    list_commands,
)
from tests.fakes.configs import read_settings
from tests.fakes.pool import make_deployment
from trainer.config import TrainerConfig
from validator.config import ValidatorConfig

pytestmark = pytest.mark.unit

DEPLOYMENT = make_deployment(chain_id=5, rpc_url=None, start_block=7)


def make_plan(public_url: str, *relays: str) -> PoolPlan:
    chain = NamedChain(deployment=DEPLOYMENT, rpc_url="http://node:1", public_url=public_url, relays=relays)
    return PoolPlan(chain=chain, port=9000)


@pytest.mark.parametrize(
    ("urls", "relays", "coordinator_host", "relay_host"),
    [
        (("https://pool.example",), ("http://pool.example:9002",), "127.0.0.1", "0.0.0.0"),
        (("https://pool.example/covey",), ("http://pool.example:9002",), "127.0.0.1", "0.0.0.0"),
        (("http://pool.example:9000",), ("http://pool.example:9002",), "0.0.0.0", "0.0.0.0"),
        (("http://[2001:db8::1]:9000",), ("http://[2001:db8::1]:9002",), "0.0.0.0", "0.0.0.0"),
        (("https://a.example", "https://b.example"), ("https://b.example",), "127.0.0.1", "127.0.0.1"),
        (("http://a.example", "http://b.example:80"), ("http://b.example:80",), "127.0.0.1", "127.0.0.1"),
        (("https://a.example", "http://c.example:9002", "https://d.example"),
         ("http://c.example:9002", "https://d.example"), "127.0.0.1", "0.0.0.0"),
        (("http://127.0.0.1:9000",), ("http://127.0.0.1:9002",), "127.0.0.1", "127.0.0.1"),
    ],
)  # fmt: skip
def test_public_urls__are_named_to_all_and_a_port_is_open_only_where_no_proxy_is_in_front(
    urls: tuple[str, ...], relays: tuple[str, ...], coordinator_host: str, relay_host: str
):
    plan = make_plan(*urls)
    settings = build_settings(plan)
    coordinator = CoordinatorConfig.load(None, settings["coordinator"], {})
    assert (coordinator.host, coordinator.port, coordinator.relays) == (coordinator_host, 9000, relays)
    assert coordinator.base_url == urls[0]
    for name, kind in (("trainer", TrainerConfig), ("validator-1", ValidatorConfig)):
        member = kind.load(None, settings[name], {})
        assert member.coordinator_url == urls[0]
        assert urlsplit(member.coordinator_url).netloc == coordinator.signed_authority, "what clients sign for"
    relay, origin = (shlex.split(list_commands(plan)[name]) for name in ("relay", "origin"))
    assert (relay[relay.index("--host") + 1] if "--host" in relay else "127.0.0.1") == relay_host
    assert "--host" not in origin


def test_describe_public_urls__proxy_or_not__says_where_each_has_to_lead():
    assert make_plan("https://pool.example").describe_public_urls() == {
        "https://pool.example": "coordinator, forward to http://127.0.0.1:9000",
        "http://pool.example:9002": "relay, port 9002 of this machine",
    }


def test_build_settings__chain_that_exists__waits_for_safe_blocks_and_spares_its_node():
    public, own = build_settings(make_plan("https://pool.example")), build_settings(PoolPlan())
    configs = [CoordinatorConfig.load(None, settings["coordinator"], {}) for settings in (public, own)]
    assert [config.finality for config in configs] == ["safe", "latest"]
    assert [config.chain_poll_seconds for config in configs] == [2.0, 0.25]
    for role in ("trainer", "validator-1"):
        assert [settings[role].get("finality", "latest") for settings in (public, own)] == ["safe", "latest"]


def test_find_shipped__every_file__is_there():
    assert {find_shipped(name).is_file() for name in ("pool.toml", "trainer.toml")} == {True}


@pytest.mark.parametrize(("file", "count"), [("pool.toml", 6), ("intellect2-pool.toml", 0)])
def test_find_short_windows__shipped_pools__test_network_has_six_and_the_papers_run_none(file: str, count: int):
    terms, params = read_settings(find_shipped(file))
    assert len(find_short_windows(terms, params)) == count
    for window in PUBLIC_WINDOWS.keys() - {"epoch_seconds", "draw_seconds"}:
        exact = replace(terms, **{window: PUBLIC_WINDOWS[window]})
        assert not any(line.startswith(window) for line in find_short_windows(exact, params))
        below = replace(terms, **{window: PUBLIC_WINDOWS[window] - 1})
        expected = f"{window} is {PUBLIC_WINDOWS[window] - 1}, but a public pool requires {PUBLIC_WINDOWS[window]}"
        assert expected in find_short_windows(below, params)


def test_public_windows__comments_of_the_shipped_pool__say_the_same():
    commented = re.findall(r"(?m)^(\w+) = \d+ *# public: (\d+)", find_shipped("pool.toml").read_text())
    assert {name: int(seconds) for name, seconds in commented} == PUBLIC_WINDOWS
