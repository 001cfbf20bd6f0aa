// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Attestation} from "./ICoveyTypes.sol";
import {IPayouts, Permit} from "./IPayouts.sol";

/// @notice Role that a bond belongs to. One account can hold bonds of several kinds.
enum BondKind {
    CONTRIBUTOR,
    VALIDATOR,
    OPERATOR
}

/// @notice Stake on its way out. It can be slashed until it is withdrawn.
/// @param amount Amount in the token's smallest unit.
/// @param availableAt Unix time in seconds from which it can be withdrawn.
struct Unbonding {
    uint128 amount;
    uint128 availableAt;
}

/// @notice Stake of one account in one pool, for one kind of bond.
/// @param bonded Stake that is not unbonding.
/// @param leaving Sum of all unbondings.
struct Balance {
    uint128 bonded;
    uint128 leaving;
}

/// @notice What slashing cases have locked of a contributor's stake.
/// @dev Spans are periods of `unbondWindow`, numbered by block time divided by `unbondWindow`.
/// @param locked Part of the bonded and leaving stake that backs open cases.
/// @param taken Amount that cases locked in the span `takenIn`, without cases that were vetoed or lapsed.
/// @param takenIn Newest span in which a case locked stake.
/// @param strikes Number of cases so far, without those that were vetoed or lapsed.
struct Exposure {
    uint96 locked;
    uint96 taken;
    uint32 takenIn;
    uint32 strikes;
}

/// @notice What one case locks.
/// @param amount Amount in the token's smallest unit.
/// @param span Span whose cap the lock counts against: block time divided by `unbondWindow`.
struct Hold {
    uint96 amount;
    uint32 span;
}

/// @title IStakeManager
/// @notice Holds the bonds of contributors, validators and operators, separately for each pool.
/// @dev Isolation: no case of one pool can reach the stake of another.
///
/// Slashing: slashed stake is burned. It goes to the address 0x...dEaD, for which nobody has a key, and never to
/// operator, validators, arbiter or caller. Otherwise stake goes back to its owner only, with one exception: the
/// operator's bond pays a contributor whose countersigned work is in no epoch.
///
/// Operator's bond: it belongs to the pool, whoever operates it. Reads with the kind OPERATOR give the same answer for
/// every account. Once the pool is closed, its heir receives it, or the operator if no heir is named.
///
/// Exits: no exit needs anyone's permission. An unbonding matures with time. An account with stake in a case that
/// nobody decides ends the case with SlashingCourt.lapse. Only the operator's bond stays until the pool is closed.
///
/// Deployment: LEDGER and COURT are fixed at construction, so no key can ever name others. The deployer predicts their
/// addresses from its nonce. Each of the two checks in its own constructor that StakeManager names it.
interface IStakeManager is IPayouts {
    /// @notice An account bonded stake.
    /// @param pool Id of the pool.
    /// @param account Owner of the stake.
    /// @param kind Kind of bond.
    /// @param amount Amount in the token's smallest unit.
    event Staked(uint256 indexed pool, address indexed account, BondKind kind, uint256 amount);

    /// @notice An account started to unbond stake.
    /// @param pool Id of the pool.
    /// @param account Owner of the stake.
    /// @param kind Kind of bond.
    /// @param amount Amount in the token's smallest unit.
    /// @param availableAt Unix time in seconds from which it can be withdrawn.
    event StakeUnbonded(
        uint256 indexed pool, address indexed account, BondKind kind, uint256 amount, uint256 availableAt
    );

    /// @notice An account withdrew matured stake.
    /// @param pool Id of the pool.
    /// @param account Owner of the stake.
    /// @param kind Kind of bond.
    /// @param amount Amount in the token's smallest unit.
    event StakeWithdrawn(uint256 indexed pool, address indexed account, BondKind kind, uint256 amount);

    /// @notice Stake was taken to be burned.
    /// @param pool Id of the pool.
    /// @param account Owner of the stake.
    /// @param kind Kind of bond.
    /// @param amount Amount in the token's smallest unit.
    event StakeSlashed(uint256 indexed pool, address indexed account, BondKind kind, uint256 amount);

    /// @notice The operator's bond paid a contributor for omitted work.
    /// @param pool Id of the pool.
    /// @param operator Operator of the pool.
    /// @param recipient Account that was paid, or credited if the token refused.
    /// @param amount Amount in the token's smallest unit. The same amount is burned.
    event BondPaid(uint256 indexed pool, address indexed operator, address indexed recipient, uint256 amount);

    /// @notice The pool does not exist or has ended, or PoolRegistry is paused.
    /// @param pool Id of the pool.
    error PoolNotOpen(uint256 pool);

    /// @notice The caller is not the operator of the pool.
    /// @param pool Id of the pool.
    /// @param account The caller.
    error NotOperator(uint256 pool, address account);

    /// @notice The account is not an active validator of the pool.
    /// @param pool Id of the pool.
    /// @param account Account that signed.
    error NotValidator(uint256 pool, address account);

    /// @notice The validator has too little stake that does not leave soon.
    /// @param validator Account that signed.
    /// @param bond Its stake as `lastingBondOf` counts it.
    /// @param required The pool's `validatorBond`.
    error BondTooSmall(address validator, uint256 bond, uint256 required);

    /// @notice Fewer valid attestations were given than the pool's `headerQuorum` requires.
    /// @param attestations Number of attestations that count.
    /// @param quorum Number of attestations that are required.
    error QuorumNotReached(uint256 attestations, uint256 quorum);

    /// @notice The caller is not the court.
    /// @param account The caller.
    error NotCourt(address account);

    /// @notice The caller is not the ledger.
    /// @param account The caller.
    error NotLedger(address account);

    /// @notice The account has less bonded stake than it asked to unbond.
    /// @param requested Amount asked for.
    /// @param available Bonded stake.
    error InsufficientStake(uint256 requested, uint256 available);

    /// @notice The account already has MAX_UNBONDINGS unbondings.
    /// @dev The limit bounds the gas of slashing, which walks through them.
    error TooManyUnbondings();

    /// @notice No unbonding of the account has matured.
    error NothingToWithdraw();

    /// @notice Open cases hold stake of this account. Each is decided or lapses.
    /// @param amount Stake that open cases hold.
    error StakeIsLocked(uint256 amount);

    /// @notice The operator's bond backs its promises until the pool is closed.
    /// @param closesAt Unix time in seconds at which it closes; the maximum of uint256 while the pool has not ended.
    error PoolNotClosed(uint256 closesAt);

    /// @notice Cases have locked as much of this contributor's stake as one span allows.
    /// @param nextAt Unix time in seconds at which the next span begins.
    error SlashCapReached(uint256 nextAt);

    /// @notice The contributor has no stake that is not held by open cases.
    /// @dev A case would lock nothing and still use up its receipt.
    error NoFreeStake();

    /// @notice Bonds tokens of the caller.
    /// @dev The caller must have approved the tokens. Reverts once the pool has ended, and for contributors while
    /// PoolRegistry is paused. Only the pool's operator can bond as OPERATOR.
    /// @param pool Id of the pool.
    /// @param kind Kind of bond.
    /// @param amount Amount in the token's smallest unit.
    function stake(uint256 pool, BondKind kind, uint256 amount) external;

    /// @notice Bonds tokens of the caller, who approves them by signature in the same call.
    /// @dev See `stake`. The token must support EIP-2612.
    /// @param pool Id of the pool.
    /// @param kind Kind of bond.
    /// @param amount Amount in the token's smallest unit.
    /// @param permit The caller's permit for this contract over exactly the amount.
    function stakeWithPermit(uint256 pool, BondKind kind, uint256 amount, Permit calldata permit) external;

    /// @notice Starts to unbond part of the caller's stake.
    /// @dev An account can have up to MAX_UNBONDINGS unbondings at a time. Only the pool's operator can unbond as
    /// OPERATOR.
    /// @param pool Id of the pool.
    /// @param kind Kind of bond.
    /// @param amount Amount in the token's smallest unit.
    function unbond(uint256 pool, BondKind kind, uint256 amount) external;

    /// @notice Pays the caller every unbonding that has matured. For the kind OPERATOR, pays the whole operator's bond
    /// to the pool's heir, or to the operator if none is named.
    /// @dev Reverts while a case locks the caller's stake as a contributor. Anyone can call it for the operator's bond,
    /// unbonded or not, once the pool is closed. So a lost operator's key does not lock the bond up.
    /// @param pool Id of the pool.
    /// @param kind Kind of bond.
    function withdraw(uint256 pool, BondKind kind) external;

    /// @notice Locks a contributor's stake, unbonding stake included, for a case, and counts a strike.
    /// @dev Court only. The amount is the smallest of: `slashAmount`, or the part of it that light cases take; what is
    /// left of `maxSlashes` times `slashAmount` in this span; and the stake that no other case holds.
    /// @param pool Id of the pool.
    /// @param account The contributor.
    /// @param isHeavy Whether to take the whole `slashAmount`, whatever the number of strikes.
    /// @return held What was locked.
    function lock(uint256 pool, address account, bool isHeavy) external returns (Hold memory held);

    /// @notice Burns stake that a case locked.
    /// @dev Court only.
    /// @param pool Id of the pool.
    /// @param account The contributor.
    /// @param amount Amount that the case locked.
    function slash(uint256 pool, address account, uint96 amount) external;

    /// @notice Frees stake that a case locked, and takes its strike back.
    /// @dev Court only. Gives the amount back to the cap of its span, while that is still the newest one. Otherwise
    /// cases that take nothing would shield a contributor from others.
    /// @param pool Id of the pool.
    /// @param account The contributor.
    /// @param held What `lock` returned.
    function release(uint256 pool, address account, Hold calldata held) external;

    /// @notice Burns part of a validator's bond: for signing a case that was vetoed, or for accepting work whose case
    /// was executed.
    /// @dev Court only. The amount is at most `signerPenalty` or `acceptPenalty`.
    /// @param pool Id of the pool.
    /// @param validator Account that signed.
    /// @param isFalseAccept Whether the validator accepted; otherwise it signed a vetoed case.
    /// @return amount Amount that was burned.
    function slashValidator(uint256 pool, address validator, bool isFalseAccept) external returns (uint256 amount);

    /// @notice Pays a contributor's payee from the operator's bond, unbonding stake included, and burns as much.
    /// @dev Ledger only. Pays at most half of the bond, so that an operator that omits the work of an accomplice burns
    /// as much as the accomplice receives.
    /// @param pool Id of the pool.
    /// @param recipient Account that the contributor has named.
    /// @param amount Amount that the contributor is owed.
    /// @return paid Amount that the recipient received, or was credited if the token refused.
    function payFromOperator(uint256 pool, address recipient, uint256 amount) external returns (uint256 paid);

    /// @notice Returns the stake of an account that is not unbonding.
    /// @param pool Id of the pool.
    /// @param kind Kind of bond.
    /// @param account Owner of the stake.
    /// @return Amount in the token's smallest unit.
    function stakeOf(uint256 pool, BondKind kind, address account) external view returns (uint256);

    /// @notice Returns the stake that an account can still lose: what is bonded and what is leaving.
    /// @param pool Id of the pool.
    /// @param kind Kind of bond.
    /// @param account Owner of the stake.
    /// @return Amount in the token's smallest unit.
    function backingOf(uint256 pool, BondKind kind, address account) external view returns (uint256);

    /// @notice Returns the stake that backs what a validator signs now.
    /// @dev Stake that is leaving counts only if it cannot be withdrawn for the pool's challenge and veto window.
    /// Within these, a case is vetoed or executed and an epoch is disabled, so the validator can still be slashed.
    /// @param pool Id of the pool.
    /// @param validator Owner of the bond.
    /// @return Amount in the token's smallest unit.
    function lastingBondOf(uint256 pool, address validator) external view returns (uint256);

    /// @notice Reverts unless an account is an active validator with enough stake to lose (see `lastingBondOf`).
    /// @dev A validator cannot void its signatures by unbonding, and cannot sign with stake that is about to leave.
    /// @param pool Id of the pool.
    /// @param validator Account that must be a validator.
    /// @param requiredBond The pool's `validatorBond`.
    function requireBonded(uint256 pool, address validator, uint256 requiredBond) external view;

    /// @notice Reverts unless enough attestations are by different validators for which `requireBonded` holds.
    /// @dev Other attestations are skipped, so that a validator that has just left does not revert the others. From a
    /// signature over another digest, an account is recovered that is not a validator.
    /// @param pool Id of the pool.
    /// @param digest EIP-712 digest of the header.
    /// @param attestations Signatures over the digest, in ascending order of their validators.
    /// @param requiredBond The pool's `validatorBond`.
    /// @param quorum The pool's `headerQuorum`.
    function requireAttested(
        uint256 pool,
        bytes32 digest,
        Attestation[] calldata attestations,
        uint256 requiredBond,
        uint256 quorum
    ) external view;

    /// @notice Returns a contributor's stake that backs open cases.
    /// @param pool Id of the pool.
    /// @param account The contributor.
    /// @return Amount in the token's smallest unit.
    function lockedOf(uint256 pool, address account) external view returns (uint256);

    /// @notice Returns the bonded and the leaving stake of an account.
    /// @param pool Id of the pool.
    /// @param kind Kind of bond.
    /// @param account Owner of the stake.
    /// @return Bonded and leaving stake.
    function getBalance(uint256 pool, BondKind kind, address account) external view returns (Balance memory);

    /// @notice Returns what slashing cases have locked of a contributor's stake.
    /// @param pool Id of the pool.
    /// @param contributor The contributor.
    /// @return Locked stake, the use of the cap and the strikes.
    function getExposure(uint256 pool, address contributor) external view returns (Exposure memory);

    /// @notice Returns the unbondings of an account.
    /// @param pool Id of the pool.
    /// @param kind Kind of bond.
    /// @param account Owner of the stake.
    /// @return Unbondings, oldest first.
    function unbondingsOf(uint256 pool, BondKind kind, address account) external view returns (Unbonding[] memory);
}
