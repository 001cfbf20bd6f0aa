"""What a watcher decides about files that are real, on a chain that the test chooses."""

import json
import random
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey.chain.structs import EpochRecord
from covey.console import pool_watcher
from covey.console.pool_watcher import PoolWatcher
from covey.errors import TransientError
from covey.network.watch_steps import WatchedPool, is_sound, list_reports, list_steps
from covey.protocol import canonical, eip712
from covey.protocol.epoch_file import EpochFile
from covey.protocol.epochs import EpochHeader
from covey.protocol.messages import Receipt
from covey.protocol.object_keys import build_epoch_key
from tests.fakes.account import Contract
from tests.fakes.pool import make_address
from tests.unit.covey.protocol.test_epoch_file import (
    BEFORE,
    CHAIN,
    FEES,
    LEDGER,
    PRICE,
    VALIDATORS,
    build,
    double_one,
    draw_counts,
    draw_leaf,
    drop_one,
    earn,
    raise_one,
)

pytestmark = pytest.mark.unit
ARBITER, WHO = make_address("arbiter"), make_address("contributor 0")
CHALLENGE, VETO, FINAL_AT = 60, 40, 1000
DISABLE_UNTIL = FINAL_AT - VETO
Posted = tuple[EpochFile, EpochHeader]


class FakeChain:
    """The account of a watcher, on a chain with these epochs, whose coordinator serves these files."""

    def __init__(self, epochs: Iterable[Posted], *, served: Iterable[Posted], now: int) -> None:
        self.pool, self.now = 1, now
        self.files = {build_epoch_key(1, header.data_hash): file.to_bytes() for file, header in served}
        self.posted = [
            SimpleNamespace(epoch=header.epoch, pool=1, header=header, record=self._record(header))
            for _, header in epochs
        ]
        terms = SimpleNamespace(
            verdict_fees=FEES,
            challenge_window=CHALLENGE,
            veto_window=VETO,
            epoch_length=50,
            arbiter=ARBITER,
            accept_penalty=1,
            signer_penalty=1,
        )
        amounts = {"claimed_of": 0, "deduction_of": 0, "ether_of": 0, "credit_of": 0}
        self.deployment = SimpleNamespace(chain_id=CHAIN)
        self.contracts = SimpleNamespace(
            ledger=Contract(LEDGER, is_posted=True, **amounts),
            stakes=Contract(make_address("stakes"), credit_of=9),
            pools=Contract(make_address("pools"), get_terms=terms),
        )
        self.client = None

    def _record(self, header: EpochHeader) -> EpochRecord:
        return EpochRecord(
            header_hash=header.compute_hash(), reward_root=header.reward_root, epoch=header.epoch,
            final_at=FINAL_AT, reward=1, cumulative=100,
        )  # fmt: skip

    def get_time(self) -> int:
        return self.now

    @asynccontextmanager
    async def open_client(self, url: str) -> Any:
        yield self

    async def get_public(self, key: str, *, max_bytes: int) -> bytes:
        if key not in self.files:
            raise TransientError("coordinator_unreachable", "withheld")
        return self.files[key]

    def get_submission(self, url: str, receipt_hash: str) -> Any:
        raise TransientError("coordinator_unreachable", "gone")


class FakePoolHistory:
    """The events of the chain, without a node."""

    chain: FakeChain

    def __init__(self, *, contracts: object, **_: object) -> None:
        self.contracts, self.validators = contracts, set(VALIDATORS)

    def refresh(self) -> bool:
        return False

    def list_epochs(self, pool: int) -> list[Any]:
        return self.chain.posted

    def find_epoch(self, pool: int, epoch: int) -> Any:
        return next((each for each in self.chain.posted if each.epoch == epoch), None)

    def read_prices(self, pool: int, epochs: object, *, now: int) -> Any:
        return SimpleNamespace(prices=(), find=lambda epoch: PRICE)

    def list_accusations(self, pool: int) -> list[Any]:
        return []

    def list_validators(self, pool: int) -> set[str]:
        return self.validators


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., WatchedPool]:
    monkeypatch.setattr(pool_watcher, "PoolHistory", FakePoolHistory)

    def look(chain: FakeChain, who: str = ARBITER) -> WatchedPool:
        monkeypatch.setattr(FakePoolHistory, "chain", chain, raising=False)
        return PoolWatcher(chain, who, coordinator_url="http://c", folder=tmp_path).look()

    return look


def begin() -> Posted:
    """Return epoch 3, whose rewards are those before the epoch of the test."""
    file, header = build([], BEFORE)
    file = replace(file, epoch=3)
    return file, replace(header, epoch=3, data_hash=canonical.sha256(file.to_bytes()))


def withhold(draw: random.Random, leaves: list[Any], counts: dict[str, int]) -> Any:
    """The epoch is true, but nobody gets its file."""
    return leaves, earn(leaves, BEFORE, counts), counts


KINDS = (raise_one, drop_one, double_one, withhold)


def disables(seen: WatchedPool) -> list[str]:
    return [step.about for step in list_steps(seen) if step.verb == "disable"]


@pytest.mark.parametrize("seed", range(100))
def test_look__false_or_withheld_epoch__is_disabled_in_the_window(seed: int, look: Callable[..., WatchedPool]):
    forge, draw = KINDS[seed % len(KINDS)], random.Random(seed)
    leaves = [draw_leaf(draw, number) for number in range(draw.randrange(1, 16))]
    counts = draw_counts(draw, leaves)
    before, false = begin(), build(*forge(draw, leaves, counts))
    served = [before] if forge is withhold else [before, false]
    now = DISABLE_UNTIL - draw.randrange(1, CHALLENGE // 2)
    seen = look(FakeChain([before, false], served=served, now=now))
    assert [bool(epoch.trouble) for epoch in seen.epochs] == [False, True]
    assert disables(seen) == ["4"]
    assert not is_sound(seen)
    assert disables(look(FakeChain([before, false], served=served, now=DISABLE_UNTIL))) == []  # It is too late.
    assert disables(look(FakeChain([before, false], served=served, now=now), VALIDATORS[0])) == []
    true = build(leaves, earn(leaves, BEFORE, counts), counts)
    seen = look(FakeChain([before, true], served=[before, true], now=now))
    assert disables(seen) == []
    assert is_sound(seen)


def write_receipt(folder: Path, leaf: Any, *, units: int) -> Receipt:
    """Write the receipt of a leaf as a worker keeps it, with a promise."""
    receipt = Receipt(
        pool=1, task=leaf.task, lease=1, node=leaf.node, contributor=leaf.contributor,
        policy_version=leaf.policy_version, work_key=leaf.work_key, groups=1, units=units, deadline=2000,
    )  # fmt: skip
    receipt_hash = eip712.compute_struct_hash(receipt)
    promise = {"receipt_hash": receipt_hash, "signed_at": 900, "due_by": 950, "signature": "0x" + "11" * 65}
    sent = folder / "home" / "outgoing" / "sent"
    sent.mkdir(parents=True, exist_ok=True)
    values = {"receipt": asdict(receipt), "signature": "0x" + "22" * 65, "countersignature": promise}
    (sent / f"{leaf.task}.json").write_text(json.dumps(values))
    return receipt


@pytest.mark.parametrize("seed", range(10))
def test_look__own_receipt_is_paid_less_than_it_says__is_reported(
    seed: int, look: Callable[..., WatchedPool], tmp_path: Path
):
    """Roots, sums and header fit the leaf, so only the holder of the receipt can find it."""
    draw = random.Random(seed)
    leaves = [draw_leaf(draw, number, contributor=WHO) for number in range(3)]
    claimed = leaves[0].units + draw.choice([0, 1, 1000])
    for i, leaf in enumerate(leaves):
        receipt = write_receipt(tmp_path, leaf, units=claimed if i == 0 else leaf.units)
        leaves[i] = replace(leaf, receipt_hash=eip712.compute_struct_hash(receipt))
    leaves[2] = replace(leaves[2], units=0, outcome=2, reason=5)  # The coordinator shows no verdict for it.
    before, paid = begin(), build(leaves, earn(leaves, BEFORE))
    seen = look(FakeChain([before, paid], served=[before, paid], now=900), WHO)
    found = {(finding.receipt_hash, finding.code) for finding in seen.findings}
    expected = {(leaves[2].receipt_hash, "units_unexplained")}
    assert found == expected | ({(leaves[0].receipt_hash, "units_differ")} if claimed != leaves[0].units else set())
    assert is_sound(seen) is (claimed == leaves[0].units)
    assert [report["code"] for report in list_reports(seen)][:2] == ["true", "true"]
    assert [receipt.is_included for receipt in seen.receipts] == [True] * 3


def test_look__credits__are_withdrawn_from_the_contract_that_owes(look: Callable[..., WatchedPool]):
    seen = look(FakeChain([begin()], served=[begin()], now=900), WHO)
    assert [(step.verb, step.about) for step in list_steps(seen)] == [("withdraw-credit", "stake")]


def test_look__epoch_was_called_false__slashes_each_attester_that_has_not_paid(
    look: Callable[..., WatchedPool], monkeypatch: pytest.MonkeyPatch
):
    """Epoch 4 was disabled. Of its three attesters, one has paid, and one has no bond any more."""
    before, false = begin(), build([], {WHO: 101})
    chain = FakeChain([before, false], served=[before], now=DISABLE_UNTIL)
    paid, poor, owing = (make_address(name) for name in ("paid", "poor", "owing"))
    signed = dict.fromkeys((paid, poor, owing), "0x" + "11" * 65)
    event = SimpleNamespace(validator=paid)
    monkeypatch.setattr(pool_watcher, "AttesterSlashed", SimpleNamespace)
    monkeypatch.setattr(pool_watcher, "read_attestations", lambda client, posted, ledger: signed)
    monkeypatch.setattr(FakePoolHistory, "list_case_events", lambda self, hash_: [event], raising=False)
    ledger, stakes = chain.contracts.ledger, chain.contracts.stakes
    ledger.is_posted = lambda pool, record: record.epoch != 4
    ledger.was_refuted = lambda header_hash: header_hash == false[1].compute_hash()
    stakes.backing_of = lambda pool, kind, account: 0 if account == poor else 5
    steps = [step for step in list_steps(look(chain, WHO)) if step.verb == "slash-attester"]
    assert [step.about for step in steps] == [f"{false[1].compute_hash()} {owing}"]
    ledger.was_refuted = lambda header_hash: False
    assert [step for step in list_steps(look(chain, WHO)) if step.verb == "slash-attester"] == []
