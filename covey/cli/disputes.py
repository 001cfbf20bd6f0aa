"""Commands for disputes: a receipt that is missing from all epochs, two receipts for one lease, an overruled verdict.

Anyone may send these transactions, because the contracts check the claims.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli.governance import ReceiptHash, find_accusation
from covey.cli.submission_commands import require_true
from covey.console import options
from covey.console.addresses import read_address
from covey.console.options import CoordinatorUrl, DeploymentFile, Json, KeyFile, Pool
from covey.errors import OperatorError, ProtocolError

if TYPE_CHECKING:
    from covey.console.account import Account
    from covey.protocol.ids import Address, Hash
    from covey.protocol.messages import Verdict

ReceiptFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Receipt that a worker has kept, for example outgoing/sent/7-9.json in its home.",
    ),
]


def rewards_challenge(
    file: ReceiptFile, deployment: DeploymentFile, key_file: KeyFile, pool: Pool, as_json: Json = False
) -> None:
    """Challenge the operator to show that a countersigned receipt is in an epoch, and put up a bond in ether.

    If nobody shows it within the pool's challenge window, `covey rewards resolve` pays the contributor from the
    operator's bond, and the ether is returned. Otherwise the ether goes to the account that shows it.

    Example: `covey rewards challenge worker-1/outgoing/sent/7-9.json --deployment net/deployment.json --pool 1
    --key-file contributor.key`
    """
    from covey.chain.contracts import OMISSION_BOND
    from covey.protocol.eip712 import compute_struct_hash
    from worker.submission_store import read_kept

    kept = read_kept(file)
    if kept.promise is None:
        raise OperatorError(
            "no_promise",
            f"{file} has no countersignature: the operator promised nothing",
            fix="Name a file of the folder outgoing/sent",
        )
    account = options.open_account(deployment, key_file, pool)
    _require_pool(account, kept.receipt.pool, file)
    entry = account.send(
        account.contracts.ledger.challenge_omission(
            kept.receipt,
            node_signature=kept.signature,
            promise=kept.promise,
            promise_signature=kept.promise_signature,
        )
    )
    receipt_hash = compute_struct_hash(kept.receipt)
    challenge = account.contracts.ledger.get_challenge(receipt_hash)
    options.show(
        {
            "receipt_hash": receipt_hash,
            "bond_wei": OMISSION_BOND,
            "answer_until": challenge.answer_by,
            "transaction": entry.transaction_hash,
        },
        as_json,
    )


def rewards_resolve(
    file: ReceiptFile, deployment: DeploymentFile, key_file: KeyFile, pool: Pool, as_json: Json = False
) -> None:
    """Resolve a challenge that nobody answered: the contributor is paid from the operator's bond.

    Example: `covey rewards resolve worker-1/outgoing/sent/7-9.json --deployment net/deployment.json --pool 1
    --key-file contributor.key`
    """
    from covey.protocol.eip712 import compute_struct_hash
    from worker.submission_store import read_kept

    receipt = read_kept(file).receipt
    account = options.open_account(deployment, key_file, pool)
    _require_pool(account, receipt.pool, file)
    entry = account.send(account.contracts.ledger.resolve_omission(receipt))
    receipt_hash = compute_struct_hash(receipt)
    state = account.contracts.ledger.get_challenge(receipt_hash).state
    options.show(
        {"receipt_hash": receipt_hash, "state": state.name.lower(), "transaction": entry.transaction_hash}, as_json
    )


def rewards_withdraw_ether(deployment: DeploymentFile, key_file: KeyFile, pool: Pool, as_json: Json = False) -> None:
    """Withdraw the ether of challenges that were upheld.

    Example: `covey rewards withdraw-ether --deployment net/deployment.json --pool 1 --key-file contributor.key`
    """
    account = options.open_account(deployment, key_file, pool)
    wei = account.contracts.ledger.ether_of(account.wallet.address)
    if not wei:
        raise OperatorError(
            "nothing_to_withdraw",
            f"no upheld challenge of {account.wallet.address} has ether left",
            fix="Run covey rewards resolve first, with the key of the account that sent the challenge",
        )
    entry = account.send(account.contracts.ledger.withdraw_ether())
    options.show({"wei": wei, "transaction": entry.transaction_hash}, as_json)


def case_equivocation(
    file: ReceiptFile,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="Another receipt that the same node signed.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    as_json: Json = False,
) -> None:
    """Slash a contributor at once because its node signed two receipts for one lease with different files.

    Each file is JSON with `receipt` and `signature`, as a worker keeps its receipts.

    Example: `covey case equivocation first.json second.json --deployment net/deployment.json --pool 1
    --key-file anybody.key`
    """
    from worker.submission_store import read_kept

    first, second = read_kept(file), read_kept(other)
    account = options.open_account(deployment, key_file, pool)
    _require_pool(account, first.receipt.pool, file)
    call = account.contracts.court.slash_for_equivocation(
        first.receipt, first.signature, second.receipt, second.signature
    )
    entry = account.send(call)
    values = {"node": first.receipt.node, "contributor": first.receipt.contributor}
    options.show(values | {"transaction": entry.transaction_hash}, as_json)


def case_slash_signer(
    receipt_hash: ReceiptHash,
    validator: Annotated[str, typer.Argument(help="Address of a validator whose verdict the arbiter overruled.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    coordinator_url: CoordinatorUrl = "http://127.0.0.1:8000",
    as_json: Json = False,
) -> None:
    """Slash the bond of a validator whose verdict opened a case that was vetoed.

    The verdict and its signature are read from the coordinator, and the contract checks both.

    Example: `covey case slash-signer RECEIPT_HASH VALIDATOR --deployment net/deployment.json --pool 1
    --key-file anybody.key`
    """
    signer = read_address(validator)
    account = options.open_account(deployment, key_file, pool)
    accusation = find_accusation(account, receipt_hash)
    verdict, signature = _find_verdict(account, coordinator_url, accusation.receipt_hash, signer)
    entry = account.send(account.contracts.court.slash_signer(accusation, verdict, signature))
    values = {"receipt_hash": accusation.receipt_hash, "validator": signer}
    options.show(values | {"transaction": entry.transaction_hash}, as_json)


def _require_pool(account: "Account", named: int, file: Path) -> None:
    if named != account.pool:
        raise OperatorError("wrong_pool", f"the receipt in {file} is of pool {named}", fix=f"Name --pool {named}")


def _find_verdict(
    account: "Account", coordinator_url: str, receipt_hash: "Hash", validator: "Address"
) -> "tuple[Verdict, str]":
    """Return a validator's revealed verdict on a submission, and its signature.

    Raises ProtocolError("unknown_verdict").
    """
    detail = account.get_submission(coordinator_url, receipt_hash)
    require_true(account, detail, receipt_hash)
    for body, signature in zip(detail.verdicts, detail.signatures, strict=True):
        if body.validator == validator:
            return body.to_message(), signature
    raise ProtocolError("unknown_verdict", f"{validator} gave no verdict on {receipt_hash}", status=404)
