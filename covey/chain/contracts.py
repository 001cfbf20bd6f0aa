"""One thin class per contract: reads return values, and writes return an unsent `Call`.

All reads of a `Contracts` are pinned to its block; see `Contracts.at`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace

from covey.chain.contract import Contract, name_fields
from covey.chain.deployment import Deployment
from covey.chain.json_rpc import BlockTag, Call, ChainClient
from covey.chain.pool_registry import PoolRegistry
from covey.chain.structs import (
    Accusation,
    Balance,
    BondKind,
    Case,
    Challenge,
    ChallengeState,
    EpochRecord,
    Inclusion,
    OnChainCaseState,
    Settlement,
    SignedPermit,
    Unbonding,
)
from covey.chain.token import Token
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import Address, Hash, PoolId, Step, hash_from_bytes
from covey.protocol.messages import Countersignature, Receipt, Verdict

OMISSION_BOND = 10**15
"""Ether, in wei, that must be sent with `EpochLedger.challenge_omission`."""
MAX_URL = 256
"""Maximum length in bytes of a URL in `PoolRegistry.announce`."""
CASE_GRACE = 86_400
"""Seconds after the veto window during which a case can be executed."""


class NodeRegistry(Contract):
    """Nodes and the contributors that they work for."""

    NAME = "NodeRegistry"

    def register_node(
        self,
        pool: PoolId,
        *,
        contributor: Address,
        node: Address,
        deadline: int,
        contributor_signature: str,
        node_signature: str,
    ) -> Call:
        signatures = _to_bytes(contributor_signature), _to_bytes(node_signature)
        return self._write("registerNode", pool, contributor, node, deadline, *signatures)

    def rotate_node(
        self, pool: PoolId, *, previous: Address, node: Address, deadline: int, node_signature: str
    ) -> Call:
        return self._write("rotateNode", pool, previous, node, deadline, _to_bytes(node_signature))

    def remove_node(self, pool: PoolId, node: Address) -> Call:
        return self._write("removeNode", pool, node)

    def invite(self, pool: PoolId, contributors: Sequence[Address]) -> Call:
        return self._write("invite", pool, list(contributors))

    def withdraw_invitation(self, pool: PoolId, contributor: Address) -> Call:
        return self._write("withdrawInvitation", pool, contributor)

    def is_invited(self, pool: PoolId, contributor: Address) -> bool:
        return bool(self._read("isInvited", pool, contributor))

    def contributor_of(self, pool: PoolId, node: Address) -> Address | None:
        """Return the contributor that a node works for. None if the node is not registered."""
        contributor = Address(self._read("contributorOf", pool, node))
        return contributor if int(contributor, 16) else None

    def nonce_of(self, node: Address) -> int:
        return int(self._read("nonceOf", node))


class StakeManager(Contract):
    """Stake of contributors, validators and operators."""

    NAME = "StakeManager"

    def stake(self, pool: PoolId, kind: BondKind, amount: int) -> Call:
        return self._write("stake", pool, kind, amount)

    def stake_with_permit(self, pool: PoolId, kind: BondKind, amount: int, permit: SignedPermit) -> Call:
        """Stake tokens that the sender approves by its signature in the same transaction."""
        return self._write("stakeWithPermit", pool, kind, amount, astuple(permit))

    def unbond(self, pool: PoolId, kind: BondKind, amount: int) -> Call:
        return self._write("unbond", pool, kind, amount)

    def withdraw(self, pool: PoolId, kind: BondKind) -> Call:
        return self._write("withdraw", pool, kind)

    def withdraw_credit(self, pool: PoolId, account: Address, recipient: Address) -> Call:
        """Pay what the token refused to pay before. Only the account itself can name another recipient."""
        return self._write("withdrawCredit", pool, account, recipient)

    def credit_of(self, pool: PoolId, account: Address) -> int:
        """Return the amount that the token refused to pay to an account, which can withdraw it."""
        return int(self._read("creditOf", pool, account))

    def stake_of(self, pool: PoolId, kind: BondKind, account: Address) -> int:
        return int(self._read("stakeOf", pool, kind, account))

    def backing_of(self, pool: PoolId, kind: BondKind, account: Address) -> int:
        """Return the stake that an account can still lose: what is bonded and what is leaving."""
        return int(self._read("backingOf", pool, kind, account))

    def lasting_bond_of(self, pool: PoolId, validator: Address) -> int:
        """Return the bond that backs what a validator signs now, without what can be withdrawn soon."""
        return int(self._read("lastingBondOf", pool, validator))

    def unbondings_of(self, pool: PoolId, kind: BondKind, account: Address) -> list[Unbonding]:
        unbondings = self._read("unbondingsOf", pool, kind, account)
        return [Unbonding(**name_fields(Unbonding, values)) for values in unbondings]

    def locked_of(self, pool: PoolId, account: Address) -> int:
        return int(self._read("lockedOf", pool, account))

    def get_balance(self, pool: PoolId, kind: BondKind, account: Address) -> Balance:
        return Balance(**name_fields(Balance, self._read("getBalance", pool, kind, account)))


class PolicyRegistry(Contract):
    """The published policies of each pool, by step."""

    NAME = "PolicyRegistry"

    def publish(self, pool: PoolId, step: Step, record_hash: Hash) -> Call:
        return self._write("publish", pool, step, record_hash)

    def policy_of(self, pool: PoolId, step: Step) -> Hash:
        """Return the record hash of a step. Raises ProtocolError("reverted") if the step is not published."""
        return Hash(self._read("policyOf", pool, step))

    def steps_of(self, pool: PoolId) -> int:
        """Return the number of published steps."""
        return int(self._read("stepsOf", pool))


class EpochLedger(Contract):
    """Settlement: escrow, epochs, rewards and omission challenges."""

    NAME = "EpochLedger"

    def fund_pool(self, pool: PoolId, amount: int) -> Call:
        return self._write("fundPool", pool, amount)

    def fund_pool_with_permit(self, pool: PoolId, amount: int, permit: SignedPermit) -> Call:
        """Add tokens that the sender approves by its signature in the same transaction."""
        return self._write("fundPoolWithPermit", pool, amount, astuple(permit))

    def set_payee(self, pool: PoolId, payee: Address) -> Call:
        """Name the account that receives the sender's rewards."""
        return self._write("setPayee", pool, payee)

    def payee_of(self, pool: PoolId, contributor: Address) -> Address:
        """Return the account that receives a contributor's rewards: the contributor, unless it named another one."""
        return Address(self._read("payeeOf", pool, contributor))

    def withdraw_credit(self, pool: PoolId, account: Address, recipient: Address) -> Call:
        """Pay what the token refused to pay before. Only the account itself can name another recipient."""
        return self._write("withdrawCredit", pool, account, recipient)

    def credit_of(self, pool: PoolId, account: Address) -> int:
        """Return the amount that the token refused to pay to an account, which can withdraw it."""
        return int(self._read("creditOf", pool, account))

    def refund_pool(self, pool: PoolId) -> Call:
        return self._write("refundPool", pool)

    def post(self, header: EpochHeader, attestations: Mapping[Address, str]) -> Call:
        """Post an epoch with the signatures of validators over its header, which may be none."""
        ordered = sorted(attestations.items(), key=lambda item: int(item[0], 16))
        return self._write("post", astuple(header), [_to_compact(signature) for _, signature in ordered])

    def disable_epoch(self, pool: PoolId, record: EpochRecord, *, is_false: bool) -> Call:
        """Disable an epoch and all later ones. If it is false, those that attested its header can be slashed."""
        return self._write("disableEpoch", pool, astuple(record), is_false)

    def claim(
        self, pool: PoolId, record: EpochRecord, contributor: Address, cumulative: int, proof: Sequence[Hash]
    ) -> Call:
        return self._write("claim", pool, astuple(record), contributor, cumulative, list(proof))

    def challenge_omission(
        self, receipt: Receipt, *, node_signature: str, promise: Countersignature, promise_signature: str
    ) -> Call:
        inclusion_promise = (promise.signed_at, promise.due_by, _to_bytes(promise_signature))
        claims = astuple(receipt), _to_bytes(node_signature), inclusion_promise
        return self._write("challengeOmission", *claims, value=OMISSION_BOND)

    def answer_omissions(self, record: EpochRecord, header: EpochHeader, inclusions: Sequence[Inclusion]) -> Call:
        """Answer challenges by proving that their receipts are in one posted epoch. The sender earns OMISSION_BOND for
        each.

        An upheld one is deducted from the contributor's rewards instead, once the epoch is final. The contract skips
        all others, and reverts with NothingToAnswer if none is left, or WrongLeaf if an open one is not in the epoch.
        Gas grows with the number of inclusions, so send them in slices.
        """
        return self._write("answerOmissions", astuple(record), astuple(header), [astuple(one) for one in inclusions])

    def resolve_omission(self, receipt: Receipt) -> Call:
        return self._write("resolveOmission", astuple(receipt))

    def withdraw_ether(self) -> Call:
        """Withdraw the bonds, in ether, of upheld challenges."""
        return self._write("withdrawEther")

    def ether_of(self, challenger: Address) -> int:
        """Return the amount in wei that a challenger can withdraw."""
        return int(self._read("etherOf", challenger))

    def epochs_of(self, pool: PoolId) -> int:
        """Return the number of posted epochs, including disabled ones."""
        return int(self._read("epochsOf", pool))

    def head_of(self, pool: PoolId) -> Hash:
        """Return the header hash of the newest epoch. Zero before the first one and after a disabled one."""
        return Hash(self._read("headOf", pool))

    def was_refuted(self, header_hash: Hash) -> bool:
        """Return whether the arbiter disabled the epoch with this header as false, so that attesters can be slashed."""
        return bool(self._read("wasRefuted", header_hash))

    def is_posted(self, pool: PoolId, record: EpochRecord) -> bool:
        """Return whether the record belongs to a posted epoch that is not disabled and still kept by the contract."""
        return bool(self._read("isPosted", pool, astuple(record)))

    def get_settlement(self, pool: PoolId) -> Settlement:
        return Settlement(**name_fields(Settlement, self._read("getSettlement", pool)))

    def claimed_of(self, pool: PoolId, contributor: Address) -> int:
        return int(self._read("claimedOf", pool, contributor))

    def deduction_of(self, pool: PoolId, contributor: Address) -> int:
        """Return the amount that is deducted from the contributor's next claims, because the bond has paid it."""
        return int(self._read("deductionOf", pool, contributor))

    def escrow_of(self, pool: PoolId) -> int:
        """Return the amount of tokens that the contract holds for the pool now."""
        return int(self._read("escrowOf", pool))

    def owed_of(self, pool: PoolId) -> int:
        """Return the amount of the escrow that posted epochs have promised and nobody has claimed yet."""
        return int(self._read("owedOf", pool))

    def get_challenge(self, receipt_hash: Hash) -> Challenge:
        challenge = Challenge(**name_fields(Challenge, self._read("getChallenge", receipt_hash)))
        return replace(challenge, state=ChallengeState(challenge.state))


class SlashingCourt(Contract):
    """Opens, executes and vetoes slashing cases."""

    NAME = "SlashingCourt"

    def propose(
        self, receipt: Receipt, node_signature: str, verdicts: Sequence[Verdict], signatures: Sequence[str]
    ) -> Call:
        """Open a case with hard rejections for the same reason, in ascending order of the validators' addresses."""
        pairs = sorted(zip(verdicts, signatures, strict=True), key=lambda pair: int(pair[0].validator, 16))
        findings = [_to_finding(verdict, signature) for verdict, signature in pairs]
        return self._write("propose", astuple(receipt), _to_bytes(node_signature), verdicts[0].reason, findings)

    def veto(self, accusation: Accusation) -> Call:
        return self._write("veto", astuple(accusation))

    def execute(self, accusation: Accusation) -> Call:
        return self._write("execute", astuple(accusation))

    def lapse(self, accusation: Accusation) -> Call:
        return self._write("lapse", astuple(accusation))

    def slash_signer(self, accusation: Accusation, verdict: Verdict, signature: str) -> Call:
        """Slash a validator for its verdict in a vetoed case."""
        return self._write("slashSigner", astuple(accusation), verdict.work_key, _to_finding(verdict, signature))

    def slash_false_accept(self, accusation: Accusation, verdict: Verdict, signature: str) -> Call:
        """Slash a validator that accepted, after a whole replay, work whose case was executed."""
        return self._write("slashFalseAccept", astuple(accusation), verdict.work_key, _to_finding(verdict, signature))

    def slash_attester(self, header: EpochHeader, signature: str) -> Call:
        """Slash the validator that signed the header of an epoch which the arbiter disabled."""
        return self._write("slashAttester", astuple(header), _to_compact(signature))

    def slash_for_equivocation(self, a: Receipt, signature_a: str, b: Receipt, signature_b: str) -> Call:
        claims = astuple(a), _to_bytes(signature_a), astuple(b), _to_bytes(signature_b)
        return self._write("slashForEquivocation", *claims)

    def get_case(self, accusation: Accusation) -> Case:
        """Return a case. Its state is NONE if there is no case."""
        case = Case(**name_fields(Case, self._read("getCase", astuple(accusation))))
        return replace(case, state=OnChainCaseState(case.state))


class Contracts:
    """All contracts of a deployment, read at one block."""

    def __init__(self, client: ChainClient, deployment: Deployment, block: BlockTag = "latest") -> None:
        self._client = client
        self.deployment = deployment
        self.pools = PoolRegistry(client, deployment.pool_registry, block)
        self.nodes = NodeRegistry(client, deployment.node_registry, block)
        self.policies = PolicyRegistry(client, deployment.policy_registry, block)
        self.stakes = StakeManager(client, deployment.stake_manager, block)
        self.ledger = EpochLedger(client, deployment.epoch_ledger, block)
        self.court = SlashingCourt(client, deployment.slashing_court, block)
        self.token = Token(client, deployment.token, block)

    def get_token(self, pool: PoolId) -> Token:
        """Return the pool's token, which may differ from the deployment's. Raises OperatorError("unknown_pool")."""
        return Token(self._client, self.pools.get_terms(pool).token)

    def at(self, block: BlockTag) -> "Contracts":
        """Return the same contracts with reads pinned to a block, so that several reads agree."""
        return Contracts(self._client, self.deployment, block)


def _to_bytes(signature: str) -> bytes:
    return bytes.fromhex(signature.removeprefix("0x"))


def _to_compact(signature: str) -> tuple[Hash, Hash]:
    """Return the halves of a signature as ERC-2098 packs them. The highest bit of the second one is v - 27."""
    packed = bytearray(_to_bytes(signature))
    packed[32] |= (packed[64] - 27) << 7
    return hash_from_bytes(bytes(packed[:32])), hash_from_bytes(bytes(packed[32:64]))


def _to_finding(verdict: Verdict, signature: str) -> tuple[Address, int, int, Hash, bytes]:
    return verdict.validator, verdict.deadline, verdict.units, verdict.evidence_hash, _to_bytes(signature)
