"""Commands for disputes: a receipt missing from all epochs, two receipts for one lease, an overruled verdict.

Any account can send these transactions, because the contracts check the claims.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli.governance import ReceiptHash, find_accusation
from covey.console import options
from covey.console.addresses import read_address
from covey.console.options import CoordinatorUrl, DeploymentFile, FolderSource, Json, KeyFile, Pool
from covey.console.terminal import Moment
from covey.errors import OperatorError, ProtocolError

if TYPE_CHECKING:
    from covey.chain.structs import Accusation
    from covey.console.account import Account
    from covey.network.false_verdicts import FalseVerdict
    from covey.protocol.ids import Address
    from covey.protocol.messages import Receipt

ReceiptFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="File of a receipt that a worker keeps, for example outgoing/sent/7-9.json in the worker's home folder.",
    ),
]


def rewards_challenge(
    file: ReceiptFile,
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Challenge the operator to prove that work with a countersigned receipt is in an epoch. Requires a bond in ether.

    If nobody proves it within the pool's challenge window, `covey rewards resolve` pays the contributor from the
    operator's bond and returns the ether. Otherwise the account that proves it receives the ether.

    Example: `covey rewards challenge worker-1/outgoing/sent/7-9.json myworker`
    """
    from covey.chain.amounts import ETHER, Amount
    from covey.chain.contracts import OMISSION_BOND
    from covey.console.receipt_files import read_receipt_file

    kept = read_receipt_file(file)
    if kept.promise is None:
        raise OperatorError(
            "no_promise",
            f"the receipt in {file} has no countersignature, so the operator made no promise about it",
            fix="Use a file in the worker's folder outgoing/sent",
        )
    account = options.open_account(deployment, key_file, pool, folder=folder)
    _require_pool(account, kept.receipt.pool, file)
    entry = account.send(
        account.contracts.ledger.challenge_omission(
            kept.receipt,
            node_signature=kept.signature,
            promise=kept.promise,
            promise_signature=kept.promise_signature,
        )
    )
    challenge = account.contracts.ledger.get_challenge(kept.receipt_hash)
    options.show(
        {
            "receipt_hash": kept.receipt_hash,
            "bond_wei" if as_json else "bond": Amount(OMISSION_BOND, ETHER),
            "answer_until": Moment(challenge.answer_by, account.get_time()),
            "transaction": entry.transaction_hash,
        },
        as_json,
    )


def rewards_resolve(
    file: ReceiptFile,
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Resolve a challenge that was not answered in time, so that the contributor is paid from the operator's bond.

    Example: `covey rewards resolve worker-1/outgoing/sent/7-9.json myworker`
    """
    from covey.console.receipt_files import read_receipt_file

    kept = read_receipt_file(file)
    account = options.open_account(deployment, key_file, pool, folder=folder)
    _require_pool(account, kept.receipt.pool, file)
    entry = account.send(account.contracts.ledger.resolve_omission(kept.receipt))
    state = account.contracts.ledger.get_challenge(kept.receipt_hash).state
    values = {"receipt_hash": kept.receipt_hash, "state": state.name.lower()}
    options.show(values | {"transaction": entry.transaction_hash}, as_json)


def rewards_withdraw_ether(
    deployment: DeploymentFile,
    key_file: KeyFile,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Withdraw the ether that was returned for upheld challenges.

    Example: `covey rewards withdraw-ether myworker`
    """
    from covey.chain.amounts import ETHER, Amount

    account = options.open_account(deployment, key_file, folder=folder)
    wei = account.contracts.ledger.ether_of(account.wallet.address)
    if not wei:
        raise OperatorError(
            "nothing_to_withdraw",
            f"account {account.wallet.address} has no ether to withdraw from upheld challenges",
            fix="Run covey rewards resolve first, with the key of the account that sent the challenge",
        )
    entry = account.send(account.contracts.ledger.withdraw_ether())
    returned = {"wei" if as_json else "ether": Amount(wei, ETHER)}
    options.show(returned | {"transaction": entry.transaction_hash}, as_json)


def case_equivocation(
    file: ReceiptFile,
    other: Annotated[
        Path,
        typer.Argument(metavar="OTHER", help="File of a second receipt that the same node signed for the same lease."),
    ],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Slash a contributor whose node signed two receipts for the same lease with different files.

    Each FILE is JSON with `receipt` and `signature`, in the form in which a worker stores its receipts. The slash takes
    effect immediately.

    Example: `covey case equivocation first.json second.json mypool`
    """
    from covey.console.receipt_files import read_receipt_file

    first, second = read_receipt_file(file), read_receipt_file(other)
    account = options.open_account(deployment, key_file, pool, folder=folder)
    _require_pool(account, first.receipt.pool, file)
    _require_equivocation(first.receipt, second.receipt)
    call = account.contracts.court.slash_for_equivocation(
        first.receipt, first.signature, second.receipt, second.signature
    )
    entry = account.send(call)
    values = {"node": first.receipt.node, "contributor": first.receipt.contributor}
    options.show(values | {"transaction": entry.transaction_hash}, as_json)


def case_slash_signer(
    receipt_hash: ReceiptHash,
    validator: Annotated[
        str, typer.Argument(help="Address of the validator to slash, whose verdict supported a vetoed case.")
    ],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    coordinator_url: CoordinatorUrl,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Slash the bond of a validator whose verdict opened a case that the arbiter vetoed.

    The verdict and its signature are read from the coordinator, and the contract checks both. If the coordinator does
    not return them, they can be found in the transaction that opened the case.

    Example: `covey case slash-signer RECEIPT_HASH VALIDATOR mypool`
    """
    signer = read_address(validator)
    account = options.open_account(deployment, key_file, pool, folder=folder)
    accusation = find_accusation(account, receipt_hash)
    found = _find_verdict(account, coordinator_url, accusation, signer)
    entry = account.send(account.contracts.court.slash_signer(accusation, found.verdict, found.signature))
    values = {"receipt_hash": accusation.receipt_hash, "validator": signer}
    options.show(values | {"transaction": entry.transaction_hash}, as_json)


def case_slash_accept(
    receipt_hash: ReceiptHash,
    validator: Annotated[
        str, typer.Argument(help="Address of the validator to slash, which accepted the work after a whole replay.")
    ],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    coordinator_url: CoordinatorUrl,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Slash the bond of a validator that accepted, after a whole replay, work whose case was executed.

    The verdict and its signature are read from the coordinator, and the contract checks both.

    Example: `covey case slash-accept RECEIPT_HASH VALIDATOR mypool`
    """
    signer = read_address(validator)
    account = options.open_account(deployment, key_file, pool, folder=folder)
    accusation = find_accusation(account, receipt_hash)
    found = _find_verdict(account, coordinator_url, accusation, signer)
    entry = account.send(account.contracts.court.slash_false_accept(accusation, found.verdict, found.signature))
    values = {"receipt_hash": accusation.receipt_hash, "validator": signer}
    options.show(values | {"transaction": entry.transaction_hash}, as_json)


def _require_pool(account: "Account", named: int, file: Path) -> None:
    if named != account.pool:
        raise OperatorError("wrong_pool", f"the receipt in {file} belongs to pool {named}", fix=f"Set --pool {named}")


def _require_equivocation(first: "Receipt", second: "Receipt") -> None:
    """Raise OperatorError("no_equivocation") unless one node submitted two different files for one lease."""
    leases = [(receipt.pool, receipt.node, receipt.task, receipt.lease) for receipt in (first, second)]
    if leases[0] != leases[1] or first.work_key == second.work_key:
        raise OperatorError(
            "no_equivocation",
            "the two receipts do not show one node claiming two different files for the same lease",
            fix="Use two receipts with the same pool, node, task and lease, but different work keys",
        )


def _find_verdict(
    account: "Account", coordinator_url: str, accusation: "Accusation", validator: "Address"
) -> "FalseVerdict":
    """Return the verdict of a validator that a case has refuted. Raises ProtocolError("unknown_verdict")."""
    from covey.network.false_verdicts import list_false_verdicts, require_true

    receipt_hash = accusation.receipt_hash
    detail = account.get_submission(coordinator_url, receipt_hash)
    require_true(detail, receipt_hash, pool=account.pool, domain=account.receipt_domain)
    case = account.contracts.court.get_case(accusation)
    for found in list_false_verdicts(accusation, case, detail):
        if found.verdict.validator == validator:
            return found
    raise ProtocolError(
        "unknown_verdict",
        f"the case about receipt {receipt_hash}, which is {case.state.name.lower()}, refutes no hard verdict of"
        f" validator {validator}",
        status=404,
    )
