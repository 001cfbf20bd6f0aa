"""The contract PoolRegistry: pools, their terms, roles, prices and validators."""

from collections.abc import Sequence
from dataclasses import astuple

from covey.chain.contract import Contract, name_fields
from covey.chain.json_rpc import Call
from covey.chain.structs import PoolRole, PoolState, PoolTerms, RoleHolder
from covey.errors import OperatorError
from covey.protocol.ids import ZERO_HASH, Address, Hash, PoolId
from covey.protocol.prices import ScheduledPrice


class PoolRegistry(Contract):
    """Pools, their operators and their validators."""

    NAME = "PoolRegistry"

    def create_pool(self, terms: PoolTerms, validators: Sequence[Address], params: str) -> Call:
        return self._write("createPool", astuple(terms), list(validators), params)

    def start_pool(self, pool: PoolId) -> Call:
        return self._write("startPool", pool)

    def end_pool(self, pool: PoolId) -> Call:
        return self._write("endPool", pool)

    def announce(self, pool: PoolId, url: str, metadata_hash: Hash = ZERO_HASH) -> Call:
        """Say where a pool is served. `url` has at most MAX_URL bytes."""
        return self._write("announce", pool, url, metadata_hash)

    def replace_validator(self, pool: PoolId, previous: Address, current: Address) -> Call:
        return self._write("replaceValidator", pool, previous, current)

    def propose_role(self, pool: PoolId, role: PoolRole, account: Address) -> Call:
        """Pass a role to another account, after a delay. The present account cancels a pending change."""
        return self._write("proposeRole", pool, role, account)

    def set_price(self, pool: PoolId, reward_per_million: int) -> Call:
        """Change the price, after a delay. The present price cancels a pending change."""
        return self._write("setPrice", pool, reward_per_million)

    def set_heir(self, pool: PoolId, heir: Address) -> Call:
        """Name who receives escrow and bond of the closed pool. ZERO_ADDRESS stands for the operator."""
        return self._write("setHeir", pool, heir)

    def pause(self) -> Call:
        return self._write("pause")

    def unpause(self) -> Call:
        return self._write("unpause")

    def is_open(self, pool: PoolId) -> bool:
        """Return whether the pool accepts new stake and nodes."""
        return bool(self._read("isOpen", pool))

    def closes_at(self, pool: PoolId) -> int:
        """Return the Unix time in seconds from which escrow and the operator's bond are released. 2**256 - 1 before the
        pool ends.
        """
        return int(self._read("closesAt", pool))

    def count_pools(self) -> int:
        return int(self._read("poolCount"))

    def get_terms(self, pool: PoolId) -> PoolTerms:
        """Return the terms of a pool. Raises OperatorError("unknown_pool") if the pool does not exist."""
        terms = PoolTerms(**name_fields(PoolTerms, self._read("getTerms", pool)))
        if int(terms.trainer, 16) == 0:
            raise OperatorError(
                "unknown_pool",
                f"pool {pool} does not exist on chain",
                fix="Correct the pool number, or create a pool with covey pool create",
            )
        return terms

    def operator_of(self, pool: PoolId) -> Address:
        return Address(self._read("operatorOf", pool))

    def signer_of(self, pool: PoolId) -> Address:
        return Address(self._read("signerOf", pool))

    def signer_at(self, pool: PoolId, at: int) -> Address:
        """Return the signer at a Unix time in seconds."""
        return Address(self._read("signerAt", pool, at))

    def get_role(self, pool: PoolId, role: PoolRole) -> RoleHolder:
        return RoleHolder(**name_fields(RoleHolder, self._read("getRole", pool, role)))

    def get_prices(self, pool: PoolId) -> tuple[ScheduledPrice, ...]:
        """Return all prices of a pool, oldest first. The last one may not hold yet."""
        found = self._read("getPrices", pool)
        return tuple(ScheduledPrice(**name_fields(ScheduledPrice, values)) for values in found)

    def state_of(self, pool: PoolId) -> PoolState:
        return PoolState(self._read("stateOf", pool))

    def is_validator(self, pool: PoolId, account: Address) -> bool:
        return bool(self._read("isValidator", pool, account))

    def get_validators(self, pool: PoolId) -> list[Address]:
        return list(self._read("getValidators", pool))
