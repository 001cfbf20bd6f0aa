// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// Whose bond it is.  The same account may hold several kinds.
enum BondKind {
    CONTRIBUTOR,
    VALIDATOR,
    OPERATOR
}

/// Stake on its way out; slashable until it is withdrawn.
struct Unbonding {
    uint128 amount;
    /// Unix seconds, from when it may be withdrawn.
    uint128 availableAt;
}

/// What one account has in one pool as one kind of bond.
struct Balance {
    /// Stake that is not on its way out.
    uint128 bonded;
    /// The sum of all unbondings.
    uint128 leaving;
}

/// What cases hold and have held of a contributor's stake.
struct Exposure {
    /// The part of bonded and leaving stake that backs open cases.
    uint96 locked;
    /// What cases locked in the span `takenIn`, without those that were overturned or lapsed.
    uint96 taken;
    /// The newest span of `unbondWindow` in which a case came: block time divided by `unbondWindow`.
    uint32 takenIn;
    /// Cases so far, not counting those that were overturned or lapsed.
    uint32 strikes;
}

/// What one case locks.
struct Hold {
    uint96 amount;
    /// The span whose cap it counts against: block time divided by `unbondWindow`.
    uint32 span;
}

/// Bonds, for each pool on its own: no case of one pool can reach the stake of another.
///
/// Slashed stake is burned: it goes to the address 0x...dEaD, to which nobody has a key, and never to an account of
/// operator, validators, arbiter or caller.  The only other way out is to the owner, or, from an operator's bond
/// alone, to a contributor whose countersigned work was left out of every epoch.
///
/// Every exit is free of permission: an unbonding matures by itself, and whoever has stake in a case that nobody
/// decides ends it with SlashingCourt.lapse.  The operator's bond stays until the pool is closed.
///
/// LEDGER and COURT are fixed at construction: no key can ever name others.  Their addresses follow from the
/// deployer's nonce, and both check at their own construction that they are the ones named here.
interface IStakeManager {
    event Staked(uint256 indexed pool, address indexed account, BondKind kind, uint256 amount);
    event StakeUnbonded(
        uint256 indexed pool, address indexed account, BondKind kind, uint256 amount, uint256 availableAt
    );
    event StakeWithdrawn(uint256 indexed pool, address indexed account, BondKind kind, uint256 amount);
    event StakeSlashed(uint256 indexed pool, address indexed account, BondKind kind, uint256 amount);
    event BondPaid(uint256 indexed pool, address indexed operator, address indexed recipient, uint256 amount);

    error PoolNotOpen(uint256 pool);
    error ZeroAmount();
    error NotOperator(uint256 pool, address account);
    error NotCourt(address account);
    error NotLedger(address account);
    /// The token credited another amount than was sent.
    error UnsupportedToken(address token);
    error InsufficientStake(uint256 requested, uint256 available);
    /// An account may have at most MAX_UNBONDINGS on their way, so that slashing cannot be made too costly to run.
    error TooManyUnbondings();
    error NothingToWithdraw();
    /// An open case holds stake of this account; it is decided, or lapses.
    error StakeIsLocked(uint256 amount);
    /// The operator's bond backs its promises until the pool is closed.
    error PoolNotClosed(uint256 closesAt);
    /// Cases have taken from this contributor what they may within one span; the next begins at `nextAt`.
    error SlashCapReached(uint256 nextAt);
    /// Open cases hold all that there is, or there is none: a case would lock nothing and use up its receipt.
    error NoFreeStake();

    /// Bonds approved tokens of the sender, until the pool has ended.  An operator's bond is the operator's alone.
    function stake(uint256 pool, BondKind kind, uint256 amount) external;

    /// Starts the way out for part of the sender's stake; several may be on their way at once.
    function unbond(uint256 pool, BondKind kind, uint256 amount) external;

    /// Pays the sender every unbonding that has matured; refused while a case locks stake of the sender.
    function withdraw(uint256 pool, BondKind kind) external;

    /// Locks a contributor's stake, unbonding included, for a case, and counts a strike.  Court only.
    /// @param isHeavy Take `slashAmount` whatever the number of strikes.
    /// @return held At most `slashAmount`, the part of it that light cases take, what is left of `maxSlashes` times it
    /// in this span, and the stake that no other case holds.
    function lock(uint256 pool, address account, bool isHeavy) external returns (Hold memory held);

    /// Burns what a case locked.  Court only.
    function slash(uint256 pool, address account, uint96 amount) external;

    /// Frees what a case locked, takes its strike back, and gives its amount back to the cap of its span: cases that
    /// take nothing do not shield a contributor from others.  Court only.
    /// @param held What `lock` returned.
    function release(uint256 pool, address account, Hold calldata held) external;

    /// Burns up to `signerPenalty` of a validator's bond, for signing a case that was overturned.  Court only.
    function slashSigner(uint256 pool, address validator) external returns (uint256 amount);

    /// Pays `amount` from the operator's bond, unbonding included, to a contributor, and burns as much again.  It pays
    /// at most half of what is there: an operator that omits an accomplice's work burns what it takes away.  Ledger
    /// only.
    /// @return paid What the contributor got; the same amount was burned.
    function payFromOperator(uint256 pool, address recipient, uint256 amount) external returns (uint256 paid);

    /// Stake that is not on its way out.
    function stakeOf(uint256 pool, BondKind kind, address account) external view returns (uint256);

    /// A contributor's stake that backs open cases.
    function lockedOf(uint256 pool, address account) external view returns (uint256);
    function getBalance(uint256 pool, BondKind kind, address account) external view returns (Balance memory);
    function getExposure(uint256 pool, address contributor) external view returns (Exposure memory);

    /// Stake on its way out, oldest first.
    function unbondingsOf(uint256 pool, BondKind kind, address account) external view returns (Unbonding[] memory);
}
