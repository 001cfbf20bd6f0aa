"""What must hold after a run, computed from the chain and from the files that its epochs name."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from covey.chain.history import History
from covey.protocol import canonical
from covey.protocol.ids import Hash, PoolId
from covey.protocol.object_keys import build_epoch_key
from covey.protocol.verdict import Decision
from tests.chaos.actors import Decider, Record
from tests.fakes.network import PRICE

OPEN = ("unsent", "signed")
"""States of transactions that are not mined."""


def find_broken(chain: Any, pool: PoolId, home: Path, database_url: str, record: Record, decide: Decider) -> list[str]:
    """Return a sentence for everything that does not hold."""
    engine = create_engine(database_url)
    try:
        return [
            *_find_unsettled(engine),
            *_find_wrong_epochs(chain, pool, home, record, decide),
            *_find_wrong_transactions(chain, engine),
        ]
    finally:
        engine.dispose()


def has_rows(database_url: str, condition: str) -> bool:
    """Return whether a table has rows with a condition, and True while the database does not answer.

    Example: `has_rows(url, "submissions WHERE decision IS NULL")`.
    """
    engine = create_engine(database_url)
    try:
        with engine.connect() as database:
            return bool(database.scalar(text(f"SELECT COUNT(*) FROM {condition}")))
    except OperationalError:
        return True
    finally:
        engine.dispose()


def _find_unsettled(engine: Engine) -> Iterator[str]:
    with engine.connect() as database:
        rows = database.execute(text("SELECT state, COUNT(*) FROM submissions GROUP BY state"))
        states = {str(state): count for state, count in rows}
        unposted = database.scalar(text("SELECT COUNT(*) FROM epochs WHERE posted_block IS NULL"))
    if set(states) - {"SETTLED"} or unposted:
        yield f"The pool did not settle in time: submissions {states}, {unposted} epochs that are not posted."


def _find_wrong_epochs(chain: Any, pool: PoolId, home: Path, record: Record, decide: Decider) -> Iterator[str]:
    posted = History(client=chain.client, contracts=chain.contracts).list_epochs(pool)
    if [event.epoch for event in posted] != list(range(len(posted))):
        yield f"The epochs on chain are {[event.epoch for event in posted]}."
    held: Counter[Hash] = Counter()
    units = 0
    rewards: dict[str, str] = {}
    for event in posted:
        data = (home / "store" / build_epoch_key(pool, event.header.data_hash)).read_bytes()
        if canonical.sha256(data) != event.header.data_hash:
            yield f"The file of epoch {event.epoch} does not have the hash that is on chain."
        file = json.loads(data)
        rewards = file["rewards"]
        for leaf in file["leaves"]:
            receipt_hash = leaf["receipt_hash"]
            held[receipt_hash] += 1
            units += leaf["units"]
            if leaf["outcome"] not in (decide(leaf["task"]), Decision.UNKNOWN):
                yield f"All validators decide otherwise about task {leaf['task']} than epoch {event.epoch} says."
            if leaf["units"] and leaf["outcome"] != Decision.ACCEPT:
                yield f"Task {leaf['task']} was not accepted, and is paid."
            promise = record.promises.get(receipt_hash)
            posted_at = chain.client.get_block(event.block_number).timestamp
            if promise is not None and posted_at > promise.due_by:
                yield f"{receipt_hash} is in epoch {event.epoch}, posted at {posted_at}, after {promise.due_by}."
    lost = set(record.promises) - set(held)
    if lost:
        yield f"{len(lost)} of {len(record.promises)} promised submissions are in no epoch, for example {min(lost)}."
    doubled = [receipt_hash for receipt_hash, count in held.items() if count > 1]
    if doubled:
        yield f"{len(doubled)} submissions are in several epochs, for example {min(doubled)}."
    if sum(map(int, rewards.values())) != units * PRICE:
        yield f"The last epoch pays {rewards}, and all leaves together have {units} units."
    if posted and posted[-1].record.cumulative != units * PRICE:
        yield f"The ledger owes {posted[-1].record.cumulative}, and all leaves together have {units} units."
    if not record.promises:
        yield "Nothing was promised, so this run shows nothing."


def _find_wrong_transactions(chain: Any, engine: Engine) -> Iterator[str]:
    with engine.connect() as database:
        intents = database.execute(text("SELECT key, state, nonce FROM intents")).all()
    operator = chain.address("operator")
    latest = int(chain.client.request("eth_getTransactionCount", operator, "latest"), 16)
    pending = int(chain.client.request("eth_getTransactionCount", operator, "pending"), 16)
    if latest != pending:
        yield f"The operator has sent {pending} transactions, of which {latest} are mined."
    nonces = Counter(nonce for _, state, nonce in intents if state == "mined")
    doubled = [nonce for nonce, count in nonces.items() if count > 1]
    if doubled:
        yield f"Several transactions have the nonces {doubled}."
    open_ones = [key for key, state, _ in intents if state in OPEN]
    if open_ones:
        yield f"These transactions are not mined: {open_ones[:5]}."
