"""The evidence that a validator records for a judgement, so that anyone can repeat it."""

from dataclasses import dataclass
from pathlib import Path

from covey.engines.installation import describe_hardware, list_versions
from covey.protocol.api.validator import JudgeOrder
from covey.protocol.evidence import MAX_TEXT, Bundle, EngineFacts
from covey.protocol.ids import Address, Hash, PoolId
from covey.protocol.verdict import Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingEnvironment:
    """The chain, pool, engine and sandbox of a judging validator.

    Example: JudgingEnvironment(chain_id=31337, pool=1, engine=EngineFacts(name="hf", ...), ...).
    """

    chain_id: int
    court: Address
    pool: PoolId
    params_hash: Hash
    engine: EngineFacts
    isolation: str
    """Isolation level of this validator's sandboxes, for example "bwrap"."""


def describe_engine(
    name: str, *, dtype: str, batch: int, device: str, interpreter: Path | None = None, contract: str = ""
) -> EngineFacts:
    """Return the engine's facts. Versions are read from the installed packages without importing them.

    `contract` is the digest of its execution contract, or empty in the calibrated lane.

    Raises OperatorError("bad_device") if the device or the interpreter cannot be used.
    """
    return EngineFacts(
        name=name,
        dtype=dtype,
        batch=batch,
        hardware=describe_hardware(device, "exact", interpreter if name == "vllm" else None),
        versions=list_versions(name, interpreter),
        contract=contract,
    )


def build_bundle(
    judgement: Judgement, order: JudgeOrder, venue: JudgingEnvironment, *, rows: tuple[int, ...]
) -> Bundle:
    """Build the evidence of a judgement, with the drawn rows of the submission.

    Strings that a peer may have influenced are cut to MAX_TEXT characters.
    """
    return Bundle(
        chain_id=venue.chain_id,
        court=venue.court,
        pool=venue.pool,
        params_hash=venue.params_hash,
        receipt=order.receipt,
        signature=order.signature,
        record_hash=order.record_hash,
        contract=order.contract,
        draw=order.draw,
        rows=rows,
        full=order.full,
        decision=judgement.decision,
        reason=judgement.reason,
        units=judgement.units,
        details={name: _cut(value) for name, value in judgement.details.items()},
        sums=dict(judgement.sums),
        engine=venue.engine,
        isolation=venue.isolation,
    )


def _cut(value: float | int | str) -> float | int | str:
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode()[:MAX_TEXT]
