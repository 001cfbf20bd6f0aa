"""The operator vanishes after an epoch was made: validators sign and post it, and the contributor is paid."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covey import cli
from covey.chain.attestations import read_attestations
from covey.chain.history import History
from covey.chain.structs import BondKind
from covey.chain.wallet import save_key
from covey.devnet import deploy
from covey.errors import CoveyError
from covey.protocol.eip712 import Domain
from covey.protocol.epoch_file import EpochFile
from covey.protocol.epochs import WorkLeaf
from covey.protocol.ids import ZERO_HASH
from tests.integration.chain.making import word

pytestmark = pytest.mark.integration
UNITS, PRICE, PENALTY = 50, 3, 15
IDLE_SECONDS = 11
"""Minimum distance of epochs and challenge window of the pool, in seconds."""


def make_file(chain: Any, pool: int, *, reward: int = UNITS * PRICE) -> EpochFile:
    """Return the first epoch, whose only leaf is work of the contributor."""
    leaf = WorkLeaf(
        receipt_hash=word(5),
        work_key=word(6),
        node=chain.address("node"),
        contributor=chain.address("contributor"),
        task=1,
        policy_version=1,
        signed_at=chain.now(),
        outcome=1,
        reason=0,
        units=UNITS,
        evidence_hash=word(7),
    )
    rewards = {chain.address("contributor"): reward}
    return EpochFile(pool=pool, epoch=0, previous_hash=ZERO_HASH, leaves=[leaf], rewards=rewards)


class Commands:
    """Runs `covey epoch` with the keys of the chain's fixture."""

    def __init__(self, chain: Any, pool: int, folder: Path) -> None:
        self._chain, self._pool, self._folder = chain, pool, folder
        chain.deployment.save(folder / "deployment.json")

    def __call__(self, key: str, command: str, file: EpochFile, *arguments: str) -> tuple[int, Any]:
        """Return the exit code with the printed values, or with the code and text of the error."""
        path, key_file = self._folder / "epoch.json", self._folder / f"{key}.key"
        path.write_bytes(file.to_bytes())
        if not key_file.exists():
            save_key(key_file, deploy.derive_key("test", key))
        words = ["epoch", command, str(path), "--json", "--key-file", str(key_file), "--pool", str(self._pool)]
        words += ["--deployment", str(self._folder / "deployment.json"), *arguments]
        result = CliRunner().invoke(cli.app, words)
        if result.exit_code:
            assert isinstance(result.exception, CoveyError)
            return result.exit_code, f"{result.exception.code}: {result.exception}"
        return 0, json.loads(result.stdout)


def test_operator_vanishes__a_quorum_posts__and_the_contributor_is_paid(chain: Any, tmp_path: Path) -> None:
    pool = chain.open_pool(header_quorum=2)
    ledger, who = chain.contracts.ledger, chain.address("contributor")
    run, file = Commands(chain, pool, tmp_path), make_file(chain, pool)

    signed = [run(f"validator-{i}", "sign", file) for i in range(2)]
    assert [code for code, _ in signed] == [0, 0]
    attestations = [word for _, values in signed for word in ("--attestation", values["signature"])]

    assert "SignerNotIdle" in run("validator-2", "post", file, *attestations)[1]
    chain.advance(IDLE_SECONDS)
    assert "QuorumNotReached(1, 2)" in run("validator-2", "post", file, *attestations[:2])[1]
    assert ledger.epochs_of(pool) == 0
    code, posted = run("validator-2", "post", file, *attestations)
    assert (code, posted["validators"]) == (0, sorted(chain.address(f"validator-{i}") for i in range(2)))
    assert ledger.head_of(pool) == posted["header_hash"] == signed[0][1]["header_hash"]

    event = History(client=chain.client, contracts=chain.contracts).find_epoch(pool, 0)
    assert event is not None
    chain.advance(20)
    before = chain.contracts.token.balance_of(who)
    chain.send("deployer", ledger.claim(pool, event.record, who, UNITS * PRICE, []))
    assert chain.contracts.token.balance_of(who) == before + UNITS * PRICE


def test_epoch_is_called_false__those_that_attested_it__are_found_and_slashed_once(chain: Any, tmp_path: Path) -> None:
    pool = chain.open_pool(header_quorum=2)
    ledger, court, stakes = chain.contracts.ledger, chain.contracts.court, chain.contracts.stakes
    run, file = Commands(chain, pool, tmp_path), make_file(chain, pool)
    signatures = [run(f"validator-{i}", "sign", file)[1]["signature"] for i in range(2)]
    words = [word for signature in signatures for word in ("--attestation", signature)]
    assert run("operator", "post", file, *words)[0] == 0
    posted = History(client=chain.client, contracts=chain.contracts).find_epoch(pool, 0)
    assert posted is not None
    domain = Domain(chain_id=chain.deployment.chain_id, contract=ledger.address)
    expected = {chain.address(f"validator-{i}"): signatures[i] for i in range(2)}
    assert read_attestations(chain.client, posted, domain) == expected
    assert read_attestations(chain.client, replace(posted, header=replace(posted.header, units=9)), domain) == {}
    assert read_attestations(chain.client, posted, replace(domain, contract=court.address)) == {}
    assert read_attestations(chain.client, replace(posted, transaction_hash=word(3)), domain) == {}

    chain.send("arbiter", ledger.disable_epoch(pool, posted.record, is_false=True))
    assert ledger.was_refuted(posted.record.header_hash)
    for validator, signature in expected.items():
        before = stakes.backing_of(pool, BondKind.VALIDATOR, validator)
        chain.send("deployer", court.slash_attester(posted.header, signature))
        assert stakes.backing_of(pool, BondKind.VALIDATOR, validator) == before - PENALTY
        with pytest.raises(CoveyError, match="AlreadySlashed"):
            chain.send("deployer", court.slash_attester(posted.header, signature))


def test_sign__second_epoch__continues_the_rewards_of_the_first_one(chain: Any, tmp_path: Path) -> None:
    pool = chain.open_pool(header_quorum=1)
    run, first = Commands(chain, pool, tmp_path), make_file(chain, pool)
    signature = run("validator-0", "sign", first)[1]["signature"]
    previous = run("operator", "post", first, "--attestation", signature)[1]["header_hash"]
    earlier = tmp_path / "first.json"
    earlier.write_bytes(first.to_bytes())
    before = ("--before", str(earlier))

    leaf, who = replace(first.leaves[0], receipt_hash=word(8)), chain.address("contributor")
    second = replace(first, epoch=1, previous_hash=previous, leaves=[leaf], rewards={who: 2 * UNITS * PRICE})
    assert run("validator-0", "sign", second)[1].startswith("no_earlier_file")
    assert "is in epoch 0, too" in run("validator-0", "sign", replace(second, leaves=first.leaves), *before)[1]
    forgetful = replace(second, rewards={who: UNITS * PRICE})
    assert run("validator-0", "sign", forgetful, *before)[1].startswith("false_rewards")
    assert run("validator-0", "sign", second, *before)[0] == 0
    earlier.write_bytes(second.to_bytes())
    assert run("validator-0", "sign", second, *before)[1].startswith("digest_mismatch")


def test_sign__what_does_not_follow_from_the_work_or_is_not_next__is_refused(chain: Any, tmp_path: Path) -> None:
    pool = chain.open_pool(header_quorum=2, epoch_units=UNITS)
    run, file = Commands(chain, pool, tmp_path), make_file(chain, pool)
    more = replace(file.leaves[0], units=UNITS + 1)
    refused = {
        "false_rewards": make_file(chain, pool, reward=UNITS * PRICE + 1),
        "bad_epoch": replace(file, epoch=1),
    }
    for code, wrong in refused.items():
        assert run("validator-0", "sign", wrong)[1].startswith(code)
    for wrong in (
        replace(file, previous_hash=word(9)),
        replace(file, pool=pool + 1),
        replace(file, leaves=[more], rewards={chain.address("contributor"): more.units * PRICE}),
        replace(file, leaves=[*file.leaves, *file.leaves]),
    ):
        assert run("validator-0", "sign", wrong)[1].startswith("bad_epoch")
    assert run("contributor", "sign", file)[1].startswith("not_a_validator")


def test_post__a_signature_over_another_epoch_or_of_a_stranger__is_refused(chain: Any, tmp_path: Path) -> None:
    pool = chain.open_pool(header_quorum=1)
    run, file = Commands(chain, pool, tmp_path), make_file(chain, pool)
    signature = run("validator-0", "sign", file)[1]["signature"]
    other = replace(file, rewards={chain.address("node"): UNITS * PRICE})
    assert run("operator", "post", other, "--attestation", signature)[1].startswith("bad_signature")
    assert run("operator", "post", file, "--attestation", signature)[0] == 0
