"""[terms] of a pool's TOML file. An error about wrong terms has the file, the name of the term and a valid value."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from covey.chain.deterrence import (
    MIN_FACTOR,
    CheatingPlan,
    Remedy,
    SubmissionCheat,
    compute_deterrence,
    list_remedies,
)
from covey.chain.structs import PoolTerms
from covey.console.addresses import is_example, read_address
from covey.errors import OperatorError
from covey.protocol.ids import ZERO_ADDRESS, Address
from covey.protocol.params import PoolParams
from covey.runtime.validation import explain_unknown

MAX_VALIDATORS = 32
"""Maximum number of validators of a pool, the same as in the contract PoolRegistry."""
_COMPUTED = ("params_hash", "quorum")
"""Fields of PoolTerms that are computed from [params]."""
_FIELDS = {field.name: field for field in fields(PoolTerms) if field.name not in _COMPUTED}
_MAXIMA = {
    "epoch_units": 2**56 - 1,
    "verdict_fee": 2**80 - 1,
    "epoch_verdicts": 2**32 - 1,
}
"""Largest values of terms that the contract keeps in few bits."""
_ADDRESSES = ("trainer", "arbiter", "signer", "heir", "token")


def read_terms(
    file: Path, values: Mapping[str, Any], token: Address, params: PoolParams
) -> tuple[PoolTerms, list[Address]]:
    """Return the terms and the validators.

    Raises OperatorError("bad_address") for a wrong address, and OperatorError("bad_pool_file") for any other mistake.
    """
    _require_names(file, values)
    terms = dict(values)
    for name in _ADDRESSES:
        if name in terms:
            terms[name] = read_address(terms[name], f"{name} in [terms] of {file}")
    named = terms.pop("validators")
    if not isinstance(named, list):
        raise _refuse(file, ["validators is not a list of addresses"])
    validators = [read_address(text, f"validators[{i}] in [terms] of {file}") for i, text in enumerate(named)]
    terms.setdefault("token", token)
    longest = terms["challenge_window"] // 2
    terms.setdefault("epoch_length", max(1, min(int(params.epoch_seconds), longest)))
    terms.setdefault("header_quorum", params.quorum)
    built = PoolTerms(params_hash=params.compute_hash(), quorum=params.quorum, **terms)
    wrong = _find_wrong(built, validators, params)
    if wrong:
        raise _refuse(file, wrong)
    return built, validators


def _require_names(file: Path, values: Mapping[str, Any]) -> None:
    known = [*_FIELDS, "validators"]
    wrong = []
    for name, value in values.items():
        if name in PoolParams.model_fields:
            wrong.append(f"{name}: belongs in [params], not in [terms]")
        elif name not in known:
            wrong.append(explain_unknown(name, known))
        elif name in _FIELDS and _FIELDS[name].type in (int, bool) and type(value) is not _FIELDS[name].type:
            kind = "a whole number" if _FIELDS[name].type is int else "true or false"
            wrong.append(f"{name}: is {value!r}, but must be {kind}")
        elif type(value) is int and value < 0:
            wrong.append(f"{name}: is {value}, but must not be negative")
    optional = {name for name, field in _FIELDS.items() if field.default is not MISSING} | {"token"}
    wrong += [f"{name}: missing" for name in known if name not in values and name not in optional]
    if wrong:
        raise _refuse(file, wrong)


def _refuse(file: Path, wrong: Sequence[str]) -> OperatorError:
    return OperatorError(
        "bad_pool_file", f"the table [terms] of {file} is wrong: {'; '.join(wrong)}", fix=f"Correct {file}"
    )


def _find_wrong(terms: PoolTerms, validators: list[Address], params: PoolParams) -> list[str]:
    """List the mistakes that PoolRegistry would refuse, and those that would prevent settlement."""
    needed = terms.challenge_window + terms.veto_window
    twice = sorted({address for address in validators if validators.count(address) > 1})
    checks = (
        (min(terms.challenge_window, terms.veto_window) < 1, "challenge_window or veto_window is 0"),
        (
            terms.unbond_window < needed,
            f"unbond_window is shorter than challenge_window + veto_window, which is {needed}",
        ),
        (64 * terms.epoch_length < needed, f"epoch_length is less than {-(-needed // 64)}"),
        (2 * terms.epoch_length > terms.challenge_window, "epoch_length exceeds half of challenge_window"),
        (terms.slash_amount > terms.min_stake, "slash_amount exceeds min_stake"),
        (terms.max_slashes < 1, "max_slashes is 0"),
        (terms.signer_penalty > terms.validator_bond, "signer_penalty exceeds validator_bond"),
        (terms.accept_penalty > terms.validator_bond, "accept_penalty exceeds validator_bond"),
        (
            len(validators) < terms.header_quorum != terms.quorum,
            f"header_quorum is {terms.header_quorum}, but there are only {len(validators)} validators",
        ),
        (terms.light_slash_bps > 10_000, "light_slash_bps exceeds 10,000"),
        (terms.arbiter in validators, "the arbiter is also a validator"),
        (
            terms.epoch_units < params.max_task_units,
            f"epoch_units is less than {params.max_task_units}, so a task may not fit in an epoch",
        ),
        (bool(twice), f"validators lists {', '.join(twice)} more than once"),
        (
            len(validators) > MAX_VALIDATORS,
            f"validators lists {len(validators)} accounts, but the maximum is {MAX_VALIDATORS}",
        ),
        (
            terms.quorum > len(validators),
            f"quorum is {terms.quorum}, but there are only {len(validators)} validators: lower "
            f"quorum in [params] to at most {len(validators)}, or list {terms.quorum} validators",
        ),
    )
    large = [
        f"{name} is {getattr(terms, name)}, but may be at most {most}"
        for name, most in _MAXIMA.items()
        if getattr(terms, name) > most
    ]
    return [message for is_wrong, message in checks if is_wrong] + large


def require_separate_roles(file: Path, terms: PoolTerms, validators: Sequence[Address], operator: Address) -> None:
    """Check that the accounts of trainer, arbiter and validators are usable.

    Raises OperatorError("example_address") for an example account, for which nobody has the key.
    Raises OperatorError("bad_pool_file") if the arbiter is the operator, which the contract refuses.
    """
    optional = {"signer": terms.signer, "heir": terms.heir}
    roles = {"trainer": terms.trainer, "arbiter": terms.arbiter}
    roles |= {name: address for name, address in optional.items() if address != ZERO_ADDRESS}
    roles |= {f"validators[{i}]": address for i, address in enumerate(validators)}
    examples = [name for name, address in roles.items() if is_example(address)]
    if examples:
        raise OperatorError(
            "example_address",
            f"{', '.join(examples)} in [terms] of {file} are example addresses, whose keys nobody has",
            fix="Create keys with covey wallet new and write the addresses that it prints",
        )
    if terms.arbiter == terms.signer:
        raise _refuse(file, [f"the arbiter {terms.arbiter} is also the signer"])
    if terms.arbiter == operator:
        raise _refuse(file, [f"the arbiter {operator} is also the operator, whose key signs this transaction"])


def list_weaknesses(terms: PoolTerms, validators: Sequence[Address], operator: Address) -> list[str]:
    """List accounts that have two roles which are meant to check each other. The contract allows this."""
    checks = (
        (
            terms.trainer == terms.arbiter,
            "trainer and arbiter are the same account, so it decides cases about its own pool",
        ),
        (terms.trainer in validators, "the trainer is also a validator, so it judges the work that it trains on"),
        (operator in validators, "the operator is also a validator, so it judges the work that it pays for"),
        (
            terms.trainer == operator,
            "trainer and operator are the same account, so their two processes compete for its nonces",
        ),
    )
    return [message for is_weak, message in checks if is_weak]


def list_useless_terms(terms: PoolTerms) -> list[str]:
    """List terms without effect. The contract allows them, so commands only warn."""
    if terms.verdict_fee and not terms.epoch_verdicts:
        return [f"verdict_fee is {terms.verdict_fee} and epoch_verdicts is 0, so no verdict is paid"]
    return []


def require_strong_terms(file: Path, terms: PoolTerms, params: PoolParams) -> None:
    """Raise OperatorError("weak_terms") for terms that the contract accepts but that deter too little."""
    weak = list_weak_terms(terms, params)
    if weak:
        raise OperatorError(
            "weak_terms",
            f"the terms in {file} deter cheating too little: {'; '.join(weak)}",
            fix=f"Correct {file}, or accept the terms with --force",
        )


def list_weak_terms(terms: PoolTerms, params: PoolParams) -> list[str]:
    """List the terms that deter too little, each with a sufficient value."""
    checks = (
        (terms.slash_amount == 0, "slash_amount is 0, so a cheat that is caught loses nothing"),
        (terms.quorum == 1, "quorum is 1, so a single validator can slash stake and void submissions"),
        (terms.validator_bond == 0, "validator_bond is 0, so a validator that signs a false case loses nothing"),
    )
    weak = [message for is_weak, message in checks if is_weak]
    deterrence = compute_deterrence(terms, params)
    plan = deterrence.find_worst(deterrence.list_cheats())
    if plan.factor < MIN_FACTOR:
        remedies = "; or ".join(_describe_remedy(remedy) for remedy in list_remedies(terms, params))
        weak.append(
            f"a cheat is expected to lose {plan.factor:.2f} times its gain by {_describe_plan(plan, params)}, but must "
            f"lose at least {MIN_FACTOR:g} times: set {remedies}"
        )
    return weak


def _describe_remedy(remedy: Remedy) -> str:
    return " and ".join(f"{name} to {value}" for name, value in remedy.values.items())


def measure_deterrence(terms: PoolTerms, params: PoolParams, *, detection: float) -> float | None:
    """Return a cheat's expected loss divided by its gain, by its worst plan. None: a cheat is never paid.

    `detection` is the probability that a whole replay finds a small difference, above 0 and at most 1.
    """
    factor = compute_deterrence(terms, params, detection=detection).factor
    return None if math.isinf(factor) else factor


def describe_deterrence(terms: PoolTerms, params: PoolParams) -> str:
    """Return a cheat's expected loss divided by its gain, as sentences.

    They name the worst plan, what it loses if a whole replay finds a small difference one time in two, and the worst
    plan with false text.
    """
    deterrence = compute_deterrence(terms, params)
    plan = deterrence.find_worst(deterrence.list_cheats())
    half = measure_deterrence(terms, params, detection=0.5)
    if half is None:
        return "cheating never pays, because nothing is paid for work"
    rarely = f"If a whole replay finds only one in two such differences, it loses {half:.1f} times its gain"
    if math.isinf(plan.factor):
        always = "cheating never pays if a whole replay finds every small difference, because all work is replayed"
        return f"{always}. {rarely}"
    text = deterrence.find_worst(deterrence.list_false_texts())
    return (
        f"a cheat is expected to lose {plan.factor:.1f} times its gain by the worst plan: "
        f"{_describe_plan(plan, params)}. {rarely}. {_describe_text(text, params)}"
    )


def _describe_text(plan: CheatingPlan, params: PoolParams) -> str:
    if math.isinf(plan.factor):
        return "False text in any row never pays"
    return f"By the worst plan with false text it loses {plan.factor:.1f} times: {_describe_plan(plan, params)}"


def _describe_plan(plan: CheatingPlan, params: PoolParams) -> str:
    first = _describe_cheat(plan.first, params)
    if plan.then is None or plan.then == plan.first:
        return first
    return f"{first} until one is caught, then {_describe_cheat(plan.then, params)}"


def _describe_cheat(cheat: SubmissionCheat, params: PoolParams) -> str:
    if cheat.false_rows is None:
        return "small differences in all rows, which only a whole replay finds"
    return f"false text in {cheat.false_rows} of {params.rollouts_per_task} rows"
