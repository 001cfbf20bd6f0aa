"""What the chain knows about an account in all pools: facts for whoever thinks of working for it, or with it.

There is no score. Each reader weighs the facts, and each can be counted again from the events.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from covey.chain import events
from covey.chain.events import Event
from covey.chain.structs import BondKind
from covey.protocol.ids import Address, Hash, PoolId


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFacts:
    """An operator of pools. Amounts are in the smallest units of the pools' tokens."""

    pools: int = 0
    ended: int = 0
    epochs: int = 0
    disabled_epochs: int = 0
    accepted_units: int = 0
    """Units of all posted epochs that were not disabled."""
    omissions_challenged: int = 0
    omissions_upheld: int = 0
    replaced_validators: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributorFacts:
    """A contributor that vouches for nodes."""

    pools: int = 0
    nodes: int = 0
    claims: int = 0
    cases: int = 0
    slashes: int = 0
    vetoed_cases: int = 0
    lapsed_cases: int = 0
    equivocations: int = 0
    omissions_upheld: int = 0
    """Challenges about its receipts that the operator lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorFacts:
    """A validator, by its bonds and by what they were taken for."""

    pools: int = 0
    slashes: int = 0
    """Slashes for signatures: in a vetoed case, of an accepted cheat, or of a disabled epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountHistory:
    """Facts about one account in its three roles."""

    operator: OperatorFacts
    contributor: ContributorFacts
    validator: ValidatorFacts


def summarize_history(seen: Iterable[Event], account: Address) -> AccountHistory:
    """Fold the events of a deployment, oldest first, into the facts about one account."""
    own: set[PoolId] = set()
    ended, nodes, worked, judged = set[PoolId](), set[Address](), set[PoolId](), set[PoolId]()
    cases, upheld, epochs = set[Hash](), set[Hash](), dict[tuple[PoolId, int], int]()
    operator, contributor, validator = OperatorFacts(), ContributorFacts(), ValidatorFacts()
    for event in seen:
        if isinstance(event, events.PoolCreated) and event.operator == account:
            own.add(event.pool)
        elif isinstance(event, events.PoolEnded) and event.pool in own:
            ended.add(event.pool)
        elif isinstance(event, events.EpochPosted) and event.pool in own:
            epochs[event.pool, event.epoch] = event.header.units
        elif isinstance(event, events.EpochDisabled) and event.pool in own:
            epochs.pop((event.pool, event.epoch), None)
        elif isinstance(event, events.NodeRegistered) and event.contributor == account:
            nodes.add(event.node)
            worked.add(event.pool)
        elif isinstance(event, events.Staked) and (event.account, event.kind) == (account, BondKind.VALIDATOR):
            judged.add(event.pool)
        elif isinstance(event, events.CaseOpened) and event.contributor == account:
            cases.add(event.receipt_hash)
        elif isinstance(event, events.OmissionUpheld):
            if event.receipt_hash in upheld:
                continue  # A later payment for the same receipt.
            upheld.add(event.receipt_hash)
        operator = _add_operator(operator, event, own)
        contributor = _add_contributor(contributor, event, account, cases)
        validator = replace(validator, slashes=validator.slashes + _is_signer(event, account))
    return AccountHistory(
        operator=replace(operator, pools=len(own), ended=len(ended), accepted_units=sum(epochs.values())),
        contributor=replace(contributor, pools=len(worked), nodes=len(nodes), cases=len(cases)),
        validator=replace(validator, pools=len(judged)),
    )


def _is_signer(event: Event, account: Address) -> bool:
    slashes = events.SignerSlashed, events.FalseAcceptSlashed, events.AttesterSlashed
    return isinstance(event, slashes) and event.validator == account


def _add_operator(facts: OperatorFacts, event: Event, own: Set[PoolId]) -> OperatorFacts:
    if getattr(event, "pool", None) not in own:
        return facts
    return replace(
        facts,
        epochs=facts.epochs + isinstance(event, events.EpochPosted),
        disabled_epochs=facts.disabled_epochs + isinstance(event, events.EpochDisabled),
        omissions_challenged=facts.omissions_challenged + isinstance(event, events.OmissionChallenged),
        omissions_upheld=facts.omissions_upheld + isinstance(event, events.OmissionUpheld),
        replaced_validators=facts.replaced_validators + isinstance(event, events.ValidatorReplaced),
    )


def _add_contributor(facts: ContributorFacts, event: Event, account: Address, cases: Set[Hash]) -> ContributorFacts:
    if getattr(event, "contributor", None) == account:
        return replace(
            facts,
            claims=facts.claims + isinstance(event, events.RewardClaimed),
            slashes=facts.slashes + isinstance(event, events.CaseExecuted),
            equivocations=facts.equivocations + isinstance(event, events.EquivocationSlashed),
            omissions_upheld=facts.omissions_upheld + isinstance(event, events.OmissionUpheld),
        )
    if getattr(event, "receipt_hash", None) in cases:
        return replace(
            facts,
            vetoed_cases=facts.vetoed_cases + isinstance(event, events.CaseVetoed),
            lapsed_cases=facts.lapsed_cases + isinstance(event, events.CaseLapsed),
        )
    return facts
