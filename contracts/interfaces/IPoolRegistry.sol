// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// Where a pool stands in its life.  Created: funded and staked, not yet working.  Ended is final.
enum PoolState {
    None,
    Created,
    Active,
    Ended
}

/// The parameters of a pool that contracts need; fixed at creation.  The others are in `params`, under `paramsHash`.
struct PoolTerms {
    /// Publishes policies.
    address trainer;
    /// Vetoes slashing cases and disables epochs; holds no money and can take none.
    address arbiter;
    /// The ERC-20 of stake and reward.  Tokens that take a fee on transfer or rebase are not supported.
    address token;
    /// keccak256 of `params`.
    bytes32 paramsHash;
    /// Smallest units of the token for one unit of work (one completion token).
    uint128 rewardPerUnit;
    /// What a contributor must stake before the coordinator gives it work.
    uint128 minStake;
    /// What one decided case takes at most.
    uint128 slashAmount;
    /// How many validators must agree.
    uint32 quorum;
    /// Seconds in which an epoch can be disabled, and an omission answered.
    uint32 challengeWindow;
    /// Seconds in which a case can be vetoed.
    uint32 vetoWindow;
    /// Seconds from unbonding to withdrawal; at least `challengeWindow + vetoWindow`.
    uint32 unbondWindow;
}

/// Pools, who holds which office in them, and their escrow.  Every pool's money is counted on its own.
/// Who creates a pool is its operator.  Escrow leaves only as reward for settled work, or back to the operator once the
/// pool has ended, the delay has passed, and only as far as nothing is owed.
interface IPoolRegistry {
    event PoolCreated(uint256 indexed pool, address indexed operator, bytes32 paramsHash, string params);
    event PoolFunded(uint256 indexed pool, address indexed funder, uint256 amount);
    event PoolStarted(uint256 indexed pool);
    event PoolEnded(uint256 indexed pool);
    event PoolRefunded(uint256 indexed pool, address indexed operator, uint256 amount);
    event ValidatorReplaced(uint256 indexed pool, address indexed previous, address indexed current);

    /// The text given is not the one that was hashed into the terms.
    error ParamsMismatch(bytes32 expected, bytes32 actual);
    error ZeroAddress();
    error ZeroAmount();
    /// A quorum must lie between 1 and the number of validators.
    error InvalidQuorum(uint256 quorum, uint256 validators);
    /// Stake must outlast every window in which its owner can still be found out.
    error UnbondWindowTooShort(uint256 unbondWindow, uint256 required);
    error DuplicateValidator(address validator);
    error NotValidator(uint256 pool, address account);
    error NotOperator(uint256 pool, address account);
    /// The verb is not lawful in this state of the pool; None means that there is no such pool.
    error WrongState(uint256 pool, PoolState state);
    /// The token credited another amount than was sent.
    error UnsupportedToken(address token);
    error InsufficientEscrow(uint256 pool, uint256 requested, uint256 available);
    error TooEarly(uint256 availableAt);

    /// Creates a pool with the sender as operator.  Pools are numbered 1, 2, 3 ...
    /// @param params The full parameters as text, kept in the event; its keccak256 is `terms.paramsHash`.
    function createPool(PoolTerms calldata terms, address[] calldata validators, string calldata params)
        external
        returns (uint256 pool);

    /// Adds to the escrow, from anybody's approved tokens, until the pool has ended.
    function fundPool(uint256 pool, uint256 amount) external;

    /// Opens the pool for work.  Operator only.
    function startPool(uint256 pool) external;

    /// Ends the pool for new work; settlement, claims and withdrawals go on.  Operator only.
    function endPool(uint256 pool) external;

    /// Returns to the operator what is not owed, `challengeWindow + vetoWindow + unbondWindow` after the end.
    function refundPool(uint256 pool) external;

    /// Hands one validator's office to another account; the former loses its power at once.  Operator only.
    function replaceValidator(uint256 pool, address previous, address current) external;

    /// Sets part of the escrow aside for posted work; reverts where the escrow cannot pay it.  Ledger only.
    function reserve(uint256 pool, uint256 amount) external;

    /// Takes a reservation back, for work whose epoch was disabled.  Ledger only.
    function unreserve(uint256 pool, uint256 amount) external;

    /// Pays a reserved amount.  Ledger only.
    function payOut(uint256 pool, address to, uint256 amount) external;

    function getTerms(uint256 pool) external view returns (PoolTerms memory);
    function operatorOf(uint256 pool) external view returns (address);
    function stateOf(uint256 pool) external view returns (PoolState);
    function isValidator(uint256 pool, address account) external view returns (bool);
    function getValidators(uint256 pool) external view returns (address[] memory);

    /// Tokens held for the pool now.
    function escrowOf(uint256 pool) external view returns (uint256);

    /// Tokens ever paid in.
    function fundedOf(uint256 pool) external view returns (uint256);

    /// The part of the escrow that is set aside for posted, unclaimed work.
    function owedOf(uint256 pool) external view returns (uint256);
}
