"""Repeats a judgement from its bundle, for `covey validator audit`. Anyone can do so without a wallet.

The report says whether the work was drawn for a whole replay, whether it had to be, and whether its rows were drawn by
the right block. With `full`, work that was not drawn is replayed whole, too.

Parameters and record hash come from the chain, bundle and file from a store, and the policy from relays. Everything
is checked by hash, so the coordinator need not be trusted.
"""

import asyncio
import re
import tempfile
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.chain.history import History
from covey.chain.json_rpc import open_node
from covey.engines.factory import build_engine, choose_options, list_contracts
from covey.environments.base import DataSets
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.network.coordinator_client import CoordinatorClient
from covey.network.entry import load_environment, open_policies
from covey.network.policy_loader import load_pool_policy
from covey.object_store import LinkSigner, ObjectStore
from covey.protocol import canonical, eip712
from covey.protocol.api.common import MAX_EVIDENCE_BYTES
from covey.protocol.eip712 import Domain
from covey.protocol.evidence import DRAWN, LIVE_GROUPS, Bundle, EngineFacts
from covey.protocol.execution_contract import ExecutionContract
from covey.protocol.ids import Hash, PoolId, Step, is_hash
from covey.protocol.object_keys import build_evidence_key, build_submission_key
from covey.protocol.params import PoolParams
from covey.protocol.running_sums import StatisticName, Sums, list_differing
from covey.protocol.thresholds import Thresholds
from covey.protocol.verdict import Judgement, Reason
from covey.sandbox import ATTEMPTS
from covey.shardcast.policy_store import PolicyStore
from covey.shardcast.reachability import KEPT_POLICIES
from covey.tasks.catalog import DataSetCatalog
from validator import verdicts
from validator.checks import CheckTools, SubmissionClaim, sum_distances
from validator.config import AuditConfig
from validator.draw_check import Draw, find_draw
from validator.evidence_bundle import describe_engine
from validator.sandboxes import build_decoder, build_grader


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """Distances of one rollout: the maximum over its windows and tokens."""

    group: int
    sibling: int
    tokens: int
    exponent: int
    mantissa_rest: float
    margin: float
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The judgement in the bundle and the judgement of this audit."""

    evidence_hash: Hash
    bundle: Bundle
    found: Judgement
    engine: EngineFacts
    """Facts of the engine of this audit."""
    limits: Thresholds
    """Limits for single windows and tokens, from the pool's parameters."""
    rows: tuple[ComparisonRow, ...]
    """Distances of the replayed rollouts in file order. Empty if there was no replay."""
    sums: Sums = field(default_factory=dict)
    """Sums that this audit found for the rows that the bundle's validator replayed."""
    draw: Draw | None = None
    """The draw of the submission. None if no readable epoch file contains the submission."""

    @property
    def agrees(self) -> bool:
        """Whether decision, reason and units are equal in both judgements, and the details that the pool acts upon."""
        bundle, found = self.bundle, self.found
        if any(bundle.details.get(name) != found.details.get(name) for name in (LIVE_GROUPS, DRAWN)):
            return False
        return (bundle.decision, bundle.reason, bundle.units) == (found.decision, found.reason, found.units)

    @property
    def differing_sums(self) -> list[StatisticName]:
        """Statistics whose sums differ, by more than `list_differing` allows if the facts of the engines differ.

        It allows as much for drawn rows, because those of other submissions may have shared their pass, and the shape
        of a batch affects the last bits. Empty if the verdicts differ, because a rejection states no sums.
        """
        is_same = self.bundle.engine == self.engine and self.bundle.full
        return list_differing(self.bundle.sums, self.sums, self.limits, is_same_engine=is_same) if self.agrees else []

    @property
    def is_draw_ignored(self) -> bool:
        """Whether the work had to be replayed although the bundle's verdict is based only on the cheap checks."""
        return self.draw is not None and self.draw.is_due and not self.bundle.full

    @property
    def is_draw_false(self) -> bool:
        """Whether only rows were replayed, and another block than the drawing one drew them.

        A replay of all rows does not depend on which block its validator saw, for example before a reorganization.
        """
        return self.draw is not None and self.draw.block_hash != self.bundle.draw and not self.bundle.full


def run(config: AuditConfig, name: str) -> Report:
    """Judge the submission of a bundle again. `name` is the bundle's file or its hash.

    Raises CoveyError if the submission cannot be audited.
    """
    return asyncio.run(_run(config, name))


async def _run(config: AuditConfig, name: str) -> Report:
    deployment = Deployment.load(config.deployment)
    chain = open_node(deployment, config.rpc_url)
    contracts = Contracts(chain, deployment)
    bundle = Bundle.from_bytes(await read_bundle(config, name))
    if config.pool is not None and config.pool != bundle.pool:
        raise ProtocolError("bad_evidence", f"the bundle is about pool {bundle.pool}, but --pool is {config.pool}")
    history = History(client=chain, contracts=contracts)
    params = read_params(history, PoolId(bundle.pool))
    require_true(bundle, contracts, params)
    file = await read_file(config, bundle, params)
    draw = await find_draw(
        history,
        bundle.receipt.to_message(),
        rules=params.verification,
        read=lambda key, size: read_object(config.storage, key, max_bytes=size),
    )
    with tempfile.TemporaryDirectory(prefix="covey-audit-") as draft:
        folder = await asyncio.to_thread(fetch_policy, config, contracts, bundle, config.policies or Path(draft))
        with DataSetCatalog(config.datasets, relays=config.relays, cache=Path(draft) / "datasets") as data_sets:
            report = await asyncio.to_thread(
                judge, config, bundle, params, file=file, policy=folder, data_sets=data_sets
            )
    return replace(report, draw=draw)


async def read_bundle(config: AuditConfig, name: str) -> bytes:
    """Read a bundle from a file, or from the store if `name` is a hash. Its bytes are checked against the hash.

    Raises OperatorError("bad_hash"), OperatorError("no_pool"), OperatorError("no_bundle") or
    ProtocolError("digest_mismatch").
    """
    if not re.fullmatch("0x[0-9a-fA-F]*", name):
        return _read_local(Path(name))
    if not is_hash(name):
        raise OperatorError(
            "bad_hash",
            f"{name} is not a valid hash",
            fix="Use 0x and 64 lower-case hexadecimal digits, or the path of a file",
        )
    if config.pool is None:
        raise OperatorError(
            "no_pool",
            "the pool is unknown, because the bundle is given as a hash without --pool",
            fix="Add --pool with the number of the pool",
        )
    data = await read_object(config.storage, build_evidence_key(config.pool, name), max_bytes=MAX_EVIDENCE_BYTES)
    if canonical.sha256(data) != name:
        raise ProtocolError("digest_mismatch", f"the bundle in the object store does not have the hash {name}")
    return data


def _read_local(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_EVIDENCE_BYTES + 1)
    except OSError as error:
        raise OperatorError(
            "no_bundle",
            f"the bundle file {path} cannot be read: {error.strerror}",
            fix="Use the path of a bundle file or the hash of a bundle",
        ) from error


def read_params(history: History, pool: PoolId) -> PoolParams:
    """Return the pool's parameters from its creation event, checked against the hash in its terms.

    Raises OperatorError("unknown_pool") if there is no such event.
    """
    terms = history.contracts.pools.get_terms(pool)
    text = history.find_params(pool)
    if text is None:
        raise OperatorError(
            "unknown_pool",
            f"no event on chain contains the parameters of pool {pool}",
            fix="Correct start_block in the deployment file, or use a node that keeps all logs",
        )
    return PoolParams.from_text(text, terms.params_hash)


def require_true(bundle: Bundle, contracts: Contracts, params: PoolParams) -> None:
    """Raise ProtocolError("bad_evidence") unless pool, parameters and policy in the bundle are those on chain, and its
    rows are those that its drawing block draws.

    Also raises ProtocolError if the receipt is not signed by its node.
    """
    deployment, receipt = contracts.deployment, bundle.receipt.to_message()
    terms = contracts.pools.get_terms(PoolId(bundle.pool))
    facts = {
        "chain": (bundle.chain_id, deployment.chain_id),
        "court": (bundle.court, deployment.slashing_court),
        "pool of the receipt": (receipt.pool, bundle.pool),
        "hash of the parameters": (bundle.params_hash, terms.params_hash),
        "record hash": (bundle.record_hash, contracts.policies.policy_of(receipt.pool, receipt.policy_version)),
    }
    for what, (claimed, true) in facts.items():
        _require_equal(what, claimed, true)
    domain = Domain(chain_id=deployment.chain_id, contract=deployment.slashing_court)
    if bundle.reason is not Reason.MALFORMED:  # a receipt without its node's signature is judged malformed
        eip712.require_signer(receipt, domain, bundle.signature, receipt.node)
    rows = params.draw_rows(eip712.compute_struct_hash(receipt), bundle.draw)
    _require_equal("list of rows", bundle.rows, rows)


def _require_equal(what: str, claimed: object, true: object) -> None:
    if claimed != true:
        raise ProtocolError(
            "bad_evidence", f"the bundle contains a false value: its {what} is {claimed} instead of {true}"
        )


async def read_file(config: AuditConfig, bundle: Bundle, params: PoolParams) -> bytes:
    """Return the rollout file of the receipt.

    Raises ProtocolError("digest_mismatch") if the hash of the stored file is not the receipt's.
    """
    receipt = bundle.receipt
    key = build_submission_key(bundle.pool, receipt.task, receipt.lease, receipt.work_key)
    file = await read_object(config.storage, key, max_bytes=params.max_submission_bytes)
    if canonical.sha256(file) != receipt.work_key:
        raise ProtocolError(
            "digest_mismatch", "the rollout file in the object store does not have the hash in the receipt"
        )
    return file


async def read_object(storage: str, key: str, *, max_bytes: int) -> bytes:
    """Return an object of at most `max_bytes`, from the coordinator's public routes or from an object store."""
    parts = urlsplit(storage)
    if parts.scheme in ("http", "https"):
        async with CoordinatorClient(storage, None, chain_id=0) as client:
            return await client.get_public(key, max_bytes=max_bytes)
    if parts.scheme == "file" and not Path(parts.path).is_dir():
        raise OperatorError(
            "bad_store",
            f"the folder {parts.path} in --storage does not exist",
            fix="Set --storage to an existing folder or a URL",
        )
    store = ObjectStore.open(storage, LinkSigner(secret=b"", base_url=""))
    return await asyncio.to_thread(store.get, key, max_bytes=max_bytes)


def fetch_policy(config: AuditConfig, contracts: Contracts, bundle: Bundle, root: Path) -> Path:
    """Return the folder of the claimed policy. If it is not in `root`, fetch it from relays. All digests are checked.

    Raises OperatorError("no_policy") if there are no relays, and OperatorError("policy_gone") if no relay has the
    policy.
    """
    version, record_hash = Step(bundle.receipt.policy_version), bundle.record_hash
    store = PolicyStore(root, keep=KEPT_POLICIES)
    folder = store.get_folder(version, record_hash)
    if store.hold_if_sound(folder):
        return folder
    if not config.relays:
        raise OperatorError(
            "no_policy",
            f"policy {version} is not on this machine, and no relay is set",
            fix="Add relays with --relay, or a folder of policies with --policies",
        )
    client = open_policies(contracts, config.relays, pool=PoolId(bundle.pool), store=store)
    try:
        return client.fetch(version, record_hash)
    except TransientError as error:
        if error.code != "not_at_relays":
            raise
        raise OperatorError(
            "policy_gone",
            f"policy {version} is not available from any relay: {error.message}",
            fix="Set --policies to a folder with a copy. The trainer keeps policies for the pool's "
            "windows, and longer with a larger keep_policies",
        ) from error
    finally:
        client.source.downloader.close()


def judge(
    config: AuditConfig, bundle: Bundle, params: PoolParams, *, file: bytes, policy: Path, data_sets: DataSets
) -> Report:
    """Run the validator's checks on an engine of this machine, with the validator's batch size.

    The batch size matters because the shape of a batch affects the last bits of the results.
    """
    named = params.verification.validator_engine
    # A validator of the exact lane judges calibrated work, too. It replays nothing under a contract of others.
    is_exact = bundle.contract == bundle.engine.contract
    contract = params.verification.list_digests().get(Hash(bundle.contract)) if is_exact else None
    usual = contract.engine if contract else "hf" if named == "any" else named
    name, dtype = config.engine or usual, config.dtype or params.model.compute_dtype
    if contract is not None:
        require_contract(contract, name, config, dtype)
    batch = bundle.engine.batch
    engine = build_engine(
        name,
        dtype=dtype,
        batch=batch,
        device=config.device,
        threads=config.threads,
        vllm=choose_options(config.vllm.fit(params.model.longest), contract),
    )
    environment = load_environment(params, data_sets, config.list_interpreters())
    with closing(engine), build_decoder(config) as decoder, build_grader(config, params, environment) as grade:
        load_pool_policy(engine, policy, bundle.receipt.policy_version, params.model)
        tools = CheckTools(
            params=params,
            domain=Domain(chain_id=bundle.chain_id, contract=bundle.court),
            engine=engine,
            environment=environment,
            decode=partial(decoder.call, attempts=ATTEMPTS),
            grade=grade,
            contract=bundle.contract if contract else "",
        )
        claim = SubmissionClaim(
            receipt=bundle.receipt.to_message(),
            signature=bundle.signature,
            record_hash=bundle.record_hash,
            contract=bundle.contract,
            drawn=bundle.rows,
            file=file,
        )
        found = verdicts.judge(claim, tools, full=config.full or bundle.full)
    sums = claim.sums if bundle.full or not claim.sums else sum_distances(claim.distances, bundle.rows)
    return Report(
        evidence_hash=bundle.compute_hash(),
        bundle=bundle,
        found=found,
        engine=describe_engine(
            name,
            dtype=dtype,
            batch=batch,
            device=config.device,
            interpreter=config.vllm.interpreter,
            contract=tools.contract,
        ),
        limits=params.verification.thresholds,
        rows=build_rows(claim),
        sums=sums,
    )


def require_contract(contract: ExecutionContract, engine: str, config: AuditConfig, dtype: str) -> None:
    """Raise OperatorError("wrong_contract") unless this machine can repeat a judgement of the exact lane.

    Only an engine with the validator's contract gives the same bits.
    """
    fix = "Run the audit on a machine with this contract"
    if engine != contract.engine:
        message = f"the judgement was made under the contract {contract.describe()}, but engine is {engine}"
        raise OperatorError("wrong_contract", message, fix=fix)
    ours = list_contracts(
        config.vllm, device=config.device, dtype=dtype, threads=config.threads, python=config.vllm.interpreter
    )
    parts = min((each.find_differences([contract]) for each in ours), key=len).items()
    if parts:
        different = ", ".join(f"{name} {theirs} instead of {own}" for name, (theirs, own) in parts)
        raise OperatorError("wrong_contract", f"the judgement was made under a contract with {different}", fix=fix)


def build_rows(claim: SubmissionClaim) -> tuple[ComparisonRow, ...]:
    """Return the distances measured by the replay, one row per replayed rollout, in file order."""
    return tuple(
        ComparisonRow(
            group=claim.rollouts[row].group,
            sibling=claim.rollouts[row].sibling,
            tokens=measured.tokens,
            exponent=max((window.sign_exponent_mismatches for window in measured.windows), default=0),
            mantissa_rest=max((window.mantissa_rest for window in measured.windows), default=0.0),
            margin=measured.margin_max,
            logprob=measured.logprob_max,
        )
        for row, measured in sorted(claim.distances.items())
    )
