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
/// Amounts in the token's smallest unit, windows in seconds.  The order packs the fields into six words.
struct PoolTerms {
    /// For one unit of work (one completion token).
    uint96 rewardPerUnit;
    /// Units that one epoch may post at most: what a stolen operator's key can promise in one go.
    uint64 epochUnits;
    /// In which an epoch can be disabled, and an omission answered.
    uint24 challengeWindow;
    /// In which a case can be vetoed.
    uint24 vetoWindow;
    /// From unbonding to withdrawal; at least `challengeWindow + vetoWindow`.
    uint24 unbondWindow;
    /// Epochs are posted at least so far apart; at most half of `challengeWindow`, so that what was disabled can be
    /// posted again in time.
    uint24 epochLength;
    /// What a decided case takes at most.
    uint96 slashAmount;
    /// What a validator must have bonded for its verdicts to count in court.
    uint96 validatorBond;
    /// How often `slashAmount` may be locked of one contributor's stake within `unbondWindow`.
    uint8 maxSlashes;
    /// A contributor's first cases, as many as `strikes`, take this part of `slashAmount` only; in 1/10,000.
    uint16 lightSlashBps;
    uint8 strikes;
    /// How many validators must agree.
    uint8 quorum;
    /// Whether contributors need an invitation by the operator.
    bool isInviteOnly;
    /// Vetoes slashing cases, disables epochs, may end the pool; holds no money and can take none.
    address arbiter;
    /// What an overturned case costs each validator that signed it.
    uint96 signerPenalty;
    /// The ERC-20 of stake and reward.  Tokens that take a fee on transfer or rebase are not supported.
    address token;
    /// What a contributor must stake before the coordinator gives it work.
    uint96 minStake;
    /// Publishes policies.
    address trainer;
    /// keccak256 of `params`.
    bytes32 paramsHash;
}

/// What EpochLedger needs of a pool for one posting.
struct PostingTerms {
    address operator;
    PoolState state;
    uint24 challengeWindow;
    uint24 vetoWindow;
    uint96 rewardPerUnit;
    uint64 epochUnits;
    uint24 epochLength;
    /// As IPoolRegistry.closesAt.
    uint256 closesAt;
}

/// What StakeManager and SlashingCourt need of a pool for one case.
struct SlashingTerms {
    uint24 vetoWindow;
    uint96 slashAmount;
    uint8 maxSlashes;
    uint24 unbondWindow;
    uint16 lightSlashBps;
    uint8 strikes;
    uint8 quorum;
    uint96 validatorBond;
}

/// Pools and who holds which office in them.  Whoever creates a pool is its operator.  No money lies here: escrow is
/// in EpochLedger, stake in StakeManager.
///
/// Pause (PAUSER_ROLE) stops new work in all pools: creating, funding, starting, staking, registering, publishing.
/// It stops no settlement, claim, challenge, case, unbonding, withdrawal or refund.  The admin names pausers and has
/// no other power; its office changes hands with a delay of ADMIN_DELAY.
interface IPoolRegistry {
    event PoolCreated(uint256 indexed pool, address indexed operator, bytes32 paramsHash, string params);
    event PoolStarted(uint256 indexed pool);
    event PoolEnded(uint256 indexed pool, uint256 closesAt);
    event ValidatorReplaced(
        uint256 indexed pool, address indexed previous, address indexed current, uint256 activeFrom
    );

    /// The text given is not the one that was hashed into the terms.
    error ParamsMismatch(bytes32 expected, bytes32 actual);
    error ZeroAddress();
    /// A quorum must lie between 1 and the number of validators, of whom there are at most MAX_VALIDATORS.
    error InvalidQuorum(uint256 quorum, uint256 validators);
    /// Windows last from one second to MAX_WINDOW, the unbonding window at most to MAX_UNBOND_WINDOW.
    error InvalidWindow(uint256 window);
    /// Stake must outlast every window in which its owner can still be found out.
    error UnbondWindowTooShort(uint256 unbondWindow, uint256 required);
    /// The ledger keeps a bounded number of epochs, which must reach over all windows.
    error InvalidEpochLength(uint256 epochLength, uint256 required);
    /// Wanted are: lightSlashBps <= 10,000; slashAmount <= minStake; maxSlashes > 0; the product of both fits 96
    /// bits; signerPenalty <= validatorBond.
    error InvalidSlash();
    error DuplicateValidator(address validator);
    /// The arbiter judges operator and validators, so it is none of them.
    error OfficeConflict(address account);
    error NotValidator(uint256 pool, address account);
    error NotOperator(uint256 pool, address account);
    /// The verb is not lawful in this state of the pool; None means that there is no such pool.
    error WrongState(uint256 pool, PoolState state);

    /// Creates a pool with the sender as operator.  Pools are numbered 1, 2, 3 ...
    /// @param params The full parameters as text, kept in the event; its keccak256 is `terms.paramsHash`.
    function createPool(PoolTerms calldata terms, address[] calldata validators, string calldata params)
        external
        returns (uint256 pool);

    /// Opens the pool for work.  Operator only.
    function startPool(uint256 pool) external;

    /// Ends the pool for new work; settlement, claims and withdrawals go on.  Operator or arbiter.
    function endPool(uint256 pool) external;

    /// Hands one validator's office to another account.  The former loses its power at once, the new one has it after
    /// twice `unbondWindow`: whoever does not trust it has one window to notice and one to leave.  Operator only.
    function replaceValidator(uint256 pool, address previous, address current) external;

    /// Stops new work.  PAUSER_ROLE only.
    function pause() external;

    /// Lets new work go on.  PAUSER_ROLE only.
    function unpause() external;

    /// Whether new stake and nodes may come: created or active, and not paused.
    function isOpen(uint256 pool) external view returns (bool);

    /// Unix seconds: `unbondWindow + 4 * (challengeWindow + vetoWindow)` after the end, when every promise of the
    /// operator can have been claimed or challenged; the largest number while the pool has not ended.
    function closesAt(uint256 pool) external view returns (uint256);
    function getTerms(uint256 pool) external view returns (PoolTerms memory);
    function getPostingTerms(uint256 pool) external view returns (PostingTerms memory);
    function getSlashingTerms(uint256 pool) external view returns (SlashingTerms memory);
    function operatorOf(uint256 pool) external view returns (address);
    function arbiterOf(uint256 pool) external view returns (address);
    function tokenOf(uint256 pool) external view returns (address);
    function stateOf(uint256 pool) external view returns (PoolState);

    /// Whether the account's verdicts have power now.
    function isValidator(uint256 pool, address account) external view returns (bool);
    function getValidators(uint256 pool) external view returns (address[] memory);
}
