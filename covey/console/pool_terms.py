"""[terms] of a pool's TOML file. An error about wrong terms has the file, the name of the term and a valid value."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from covey.chain.deterrence import LEAST_FACTOR, Remedy, compute_deterrence, list_remedies
from covey.chain.structs import PoolTerms
from covey.console.addresses import is_example, read_address
from covey.errors import OperatorError
from covey.protocol.ids import Address
from covey.protocol.params import PoolParams
from covey.runtime.validation import explain_unknown

MAX_VALIDATORS = 32
"""Maximum number of validators of a pool, the same as in the contract PoolRegistry."""
_COMPUTED = ("params_hash", "quorum")
"""Fields of PoolTerms that are computed from [params]."""
_FIELDS = {field.name: field for field in fields(PoolTerms) if field.name not in _COMPUTED}
_ADDRESSES = ("trainer", "arbiter", "token")


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
        raise _refuse(file, ["validators must be a list of addresses"])
    validators = [read_address(text, f"validators[{i}] in [terms] of {file}") for i, text in enumerate(named)]
    terms.setdefault("token", token)
    longest = terms["challenge_window"] // 2
    terms.setdefault("epoch_length", max(1, min(int(params.epoch_seconds), longest)))
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
            wrong.append(f"{name}: belongs in [params]")
        elif name not in known:
            wrong.append(explain_unknown(name, known))
        elif name in _FIELDS and _FIELDS[name].type in (int, bool) and type(value) is not _FIELDS[name].type:
            kind = "a whole number" if _FIELDS[name].type is int else "true or false"
            wrong.append(f"{name}: must be {kind}, not {value!r}")
        elif type(value) is int and value < 0:
            wrong.append(f"{name}: must not be negative, but is {value}")
    optional = {name for name, field in _FIELDS.items() if field.default is not MISSING} | {"token"}
    wrong += [f"{name}: missing" for name in known if name not in values and name not in optional]
    if wrong:
        raise _refuse(file, wrong)


def _refuse(file: Path, wrong: Sequence[str]) -> OperatorError:
    return OperatorError("bad_pool_file", f"[terms] of {file} is wrong: {'; '.join(wrong)}", fix=f"Correct {file}")


def _find_wrong(terms: PoolTerms, validators: list[Address], params: PoolParams) -> list[str]:
    """List the mistakes that PoolRegistry would refuse, and those that would prevent settlement."""
    needed = terms.challenge_window + terms.veto_window
    twice = sorted({address for address in validators if validators.count(address) > 1})
    checks = (
        (min(terms.challenge_window, terms.veto_window) < 1, "challenge_window and veto_window must be at least 1"),
        (terms.unbond_window < needed, f"unbond_window must be at least challenge_window + veto_window, {needed}"),
        (64 * terms.epoch_length < needed, f"epoch_length must be at least {-(-needed // 64)}"),
        (2 * terms.epoch_length > terms.challenge_window, "epoch_length must be at most half of challenge_window"),
        (terms.slash_amount > terms.min_stake, "slash_amount must not exceed min_stake"),
        (terms.max_slashes < 1, "max_slashes must be at least 1"),
        (terms.signer_penalty > terms.validator_bond, "signer_penalty must not exceed validator_bond"),
        (terms.light_slash_bps > 10_000, "light_slash_bps must not exceed 10,000"),
        (terms.arbiter in validators, "the arbiter must not be a validator"),
        (terms.epoch_units < params.max_task_units, f"epoch_units must hold a task, {params.max_task_units}"),
        (bool(twice), f"validators names {', '.join(twice)} more than once"),
        (len(validators) > MAX_VALIDATORS, f"validators names {len(validators)} accounts, at most {MAX_VALIDATORS}"),
        (
            terms.quorum > len(validators),
            f"quorum is {terms.quorum} and there are {len(validators)} validators: lower quorum in [params] to at most"
            f" {len(validators)}, or name {terms.quorum} validators",
        ),
    )
    return [message for is_wrong, message in checks if is_wrong]


def require_separate_roles(file: Path, terms: PoolTerms, validators: Sequence[Address], operator: Address) -> None:
    """Check that the accounts of trainer, arbiter and validators are usable.

    Raises OperatorError("example_address") for an example account, for which nobody has the key.
    Raises OperatorError("bad_pool_file") if the arbiter is the operator, which the contract refuses.
    """
    roles = {"trainer": terms.trainer, "arbiter": terms.arbiter}
    roles |= {f"validators[{i}]": address for i, address in enumerate(validators)}
    examples = [name for name, address in roles.items() if is_example(address)]
    if examples:
        raise OperatorError(
            "example_address",
            f"{', '.join(examples)} in [terms] of {file} are examples, to which nobody has a key",
            fix="Make the keys with covey wallet new and write the addresses that it prints",
        )
    if terms.arbiter == operator:
        raise _refuse(file, [f"the arbiter must not be the operator, {operator}, who signs"])


def list_weaknesses(terms: PoolTerms, validators: Sequence[Address], operator: Address) -> list[str]:
    """List accounts that have two roles which should control each other. The contract allows this."""
    checks = (
        (terms.trainer == terms.arbiter, "trainer and arbiter are one account, which judges cases about its own pool"),
        (terms.trainer in validators, "the trainer is a validator: it judges the work that it learns from"),
        (operator in validators, "the operator is a validator: it judges the work that it pays for"),
        (
            terms.trainer == operator,
            "trainer and operator are one account: their two processes compete for its nonces",
        ),
    )
    return [message for is_weak, message in checks if is_weak]


def require_strong_terms(file: Path, terms: PoolTerms, params: PoolParams) -> None:
    """Raise OperatorError("weak_terms") for terms that the contract accepts but that deter too little."""
    weak = list_weak_terms(terms, params)
    if weak:
        raise OperatorError(
            "weak_terms", f"{file}: {'; '.join(weak)}", fix=f"Correct {file}, or accept it with --force"
        )


def list_weak_terms(terms: PoolTerms, params: PoolParams) -> list[str]:
    """List the terms that deter too little, each with a sufficient value."""
    checks = (
        (terms.slash_amount == 0, "slash_amount is 0: a cheat that is caught loses nothing"),
        (terms.quorum == 1, "quorum is 1: one validator alone can slash and void"),
        (terms.validator_bond == 0, "validator_bond is 0: a validator that signs a false case loses nothing"),
    )
    weak = [message for is_weak, message in checks if is_weak]
    factor = compute_deterrence(terms, params).factor
    if factor < LEAST_FACTOR:
        remedies = "; or ".join(_describe_remedy(remedy) for remedy in list_remedies(terms, params))
        weak.append(
            f"a cheat is expected to lose {factor:.2f} times what it gains, but at least {LEAST_FACTOR:g} times is"
            f" required: set {remedies}"
        )
    return weak


def _describe_remedy(remedy: Remedy) -> str:
    return " and ".join(f"{name} to {value}" for name, value in remedy.values.items())


def describe_deterrence(terms: PoolTerms, params: PoolParams, *, as_json: bool = False) -> str | float | None:
    """Return a cheat's expected loss divided by its gain, as a sentence or, for JSON, as a number.

    The number is None if a cheat is never paid.
    """
    factor = compute_deterrence(terms, params).factor
    if math.isinf(factor):
        return None if as_json else "no cheat is paid: all work is replayed, or nothing is paid for it"
    return factor if as_json else f"a cheat is expected to lose {factor:.1f} times what it gains"
