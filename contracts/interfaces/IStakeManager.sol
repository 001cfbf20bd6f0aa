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
    uint256 amount;
    /// Unix seconds, from when it may be withdrawn.
    uint256 availableAt;
}

/// Stake that backs an open case.
struct Lock {
    uint256 pool;
    address account;
    uint256 amount;
    /// Unix seconds, from when anyone may release it; 0 where there is no lock.
    uint256 expiresAt;
}

/// Bonds, for each pool on its own: no case of one pool can reach the stake of another.
///
/// Slashed stake is burned: it goes to the address 0x...dEaD, to which nobody has a key, and never to an account of
/// operator, validators, arbiter or caller.  The only other way out is to the owner, or, from an operator's bond alone,
/// to a contributor whose countersigned work was left out of every epoch.
///
/// Every exit is free of permission: an unbonding matures by itself, a lock expires by itself.
///
/// Deployment, in this order: token; PoolRegistry(admin); NodeRegistry(pools); PolicyRegistry(pools);
/// StakeManager(pools, admin); EpochLedger(pools, stakes); SlashingCourt(pools, nodes, stakes).  Then the admin grants
/// PoolRegistry.LEDGER_ROLE and StakeManager.LEDGER_ROLE to EpochLedger and StakeManager.COURT_ROLE to SlashingCourt,
/// and gives up both admin offices (beginDefaultAdminTransfer(0), then renounceRole in a later block), after which
/// nobody can ever name another court or ledger.
interface IStakeManager {
    event Staked(uint256 indexed pool, address indexed account, BondKind kind, uint256 amount);
    event StakeUnbonded(
        uint256 indexed pool, address indexed account, BondKind kind, uint256 amount, uint256 availableAt
    );
    event StakeWithdrawn(uint256 indexed pool, address indexed account, BondKind kind, uint256 amount);
    event StakeLocked(uint256 indexed caseId, uint256 indexed pool, address indexed account, uint256 amount);
    event StakeReleased(uint256 indexed caseId, uint256 indexed pool, address indexed account, uint256 amount);
    event StakeSlashed(uint256 indexed pool, address indexed account, BondKind kind, uint256 amount);
    event BondPaid(uint256 indexed pool, address indexed operator, address indexed recipient, uint256 amount);

    error PoolNotOpen(uint256 pool);
    error ZeroAmount();
    error UnsupportedToken(address token);
    error InsufficientStake(uint256 requested, uint256 available);
    /// An account may have at most MAX_UNBONDINGS on their way, so that slashing cannot be made too costly to run.
    error TooManyUnbondings();
    error NothingToWithdraw();
    /// An open case holds stake of this account; it ends by decision or expires by itself.
    error StakeIsLocked(uint256 amount);
    error LockExists(uint256 caseId);
    error NoLock(uint256 caseId);
    error LockNotExpired(uint256 expiresAt);
    error LockExpired(uint256 expiresAt);

    /// Bonds approved tokens of the sender, until the pool has ended.
    function stake(uint256 pool, BondKind kind, uint256 amount) external;

    /// Starts the way out for part of the sender's stake; several may be on their way at once.
    function unbond(uint256 pool, BondKind kind, uint256 amount) external;

    /// Pays the sender every unbonding that has matured; refused while a case locks stake of the sender.
    function withdraw(uint256 pool, BondKind kind) external;

    /// Locks up to `amount` of a contributor's stake, unbonding included, for a case.  Court only.
    /// @return locked What is locked: less than `amount` where the free stake is less.
    function lock(uint256 pool, address account, uint256 amount, uint256 caseId) external returns (uint256 locked);

    /// Burns what the case locked, before the lock expires.  Court only.
    function slash(uint256 caseId) external returns (uint256 amount);

    /// Frees what the case locked.  Court only.
    function release(uint256 caseId) external;

    /// Frees what the case locked, once the lock has expired (veto window plus GRACE).  Anyone.
    function releaseExpired(uint256 caseId) external;

    /// Burns up to `amount` of a contributor's unlocked stake at once, for proven equivocation.  Court only.
    function slashNow(uint256 pool, address account, uint256 amount) external returns (uint256 slashed);

    /// Pays up to `amount` from the operator's bond, unbonding included, to a contributor.  Ledger only.
    function payFromOperator(uint256 pool, address recipient, uint256 amount) external returns (uint256 paid);

    /// Stake that is not on its way out.
    function stakeOf(uint256 pool, BondKind kind, address account) external view returns (uint256);

    /// Stake on its way out, oldest first.
    function unbondingsOf(uint256 pool, BondKind kind, address account) external view returns (Unbonding[] memory);

    /// A contributor's stake that backs open cases.
    function lockedOf(uint256 pool, address account) external view returns (uint256);

    function getLock(uint256 caseId) external view returns (Lock memory);
}
