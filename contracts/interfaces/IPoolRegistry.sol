// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @notice State of a pool.
/// @dev A created pool can be funded and staked in, but does no work yet. Ended is final.
enum PoolState {
    None,
    Created,
    Active,
    Ended
}

/// @notice Role that one account holds in a pool.
/// @dev The operator funds, refunds and ends the pool, names validators and changes roles and price. The signer signs
/// promises and posts epochs. The trainer publishes policies. The arbiter vetoes cases and disables epochs.
enum Role {
    Operator,
    Signer,
    Trainer,
    Arbiter
}

/// @notice A price and when it holds.
/// @param rewardPerMillion Reward for 1,000,000 units.
/// @param start Unix time in seconds. The price holds for epochs that begin then or later, until the next one.
struct ScheduledPrice {
    uint96 rewardPerMillion;
    uint40 start;
}

/// @notice Parameters of a pool that the contracts need, fixed at creation, except price, roles and heir.
/// @dev All other parameters are in the text `params`, whose hash is `paramsHash`. Amounts are in the token's smallest
/// unit, windows in seconds. The order of the fields packs them into eight storage slots.
/// @param epochUnits Maximum of units in one epoch. It bounds what a stolen operator's key can promise at once.
/// @param challengeWindow Time in which an epoch can be disabled, and in which an omission challenge can be answered.
/// @param vetoWindow Time in which a case can be vetoed.
/// @param unbondWindow Time from unbonding to withdrawal; at least `challengeWindow + vetoWindow`.
/// @param epochLength Minimum time between two epochs; at most half of `challengeWindow`, so that the work of a
/// disabled epoch can be posted again in time.
/// @param validatorBond Stake that a validator must have bonded for its verdicts and attestations to count.
/// @param headerQuorum Number of validators that must attest each epoch header; 0 if the signer alone posts.
/// @param slashAmount Maximum that one case takes.
/// @param verdictFee Fee for one verdict that an epoch counts.
/// @param epochVerdicts Maximum of verdicts that one epoch pays.
/// @param maxSlashes How many times `slashAmount` can be locked of one contributor's stake within one span of
/// `unbondWindow`.
/// @param lightSlashBps Part of `slashAmount` that a light case takes, in 1/10,000.
/// @param strikes Number of a contributor's first cases that are light.
/// @param quorum Number of validators that must agree on a verdict.
/// @param isInviteOnly Whether contributors need an invitation from the operator.
/// @param arbiter Account that vetoes cases, disables epochs and can end the pool. It holds no money and can take none.
/// @param signerPenalty What a vetoed case costs each validator that signed it.
/// @param token ERC-20 token of stake and reward. Tokens that take a fee on transfer or rebase are not supported.
/// @param minStake What a contributor must stake before the coordinator gives it work.
/// @param trainer Account that publishes policies.
/// @param acceptPenalty What a validator loses that accepted work whose case was executed; at most `validatorBond`.
/// @param signer Account that signs promises and posts epochs. It can be a key that is kept online. In `createPool`,
/// zero stands for the caller.
/// @param rewardPerMillion Reward for 1,000,000 units of work. A unit is one completion token.
/// @param heir Account that receives escrow and bond of a closed pool instead of the operator; zero if there is none.
/// @param paramsHash keccak256 of the text `params`.
struct PoolTerms {
    uint56 epochUnits;
    uint24 challengeWindow;
    uint24 vetoWindow;
    uint24 unbondWindow;
    uint24 epochLength;
    uint96 validatorBond;
    uint8 headerQuorum;
    uint96 slashAmount;
    uint80 verdictFee;
    uint32 epochVerdicts;
    uint8 maxSlashes;
    uint16 lightSlashBps;
    uint8 strikes;
    uint8 quorum;
    bool isInviteOnly;
    address arbiter;
    uint96 signerPenalty;
    address token;
    uint96 minStake;
    address trainer;
    uint96 acceptPenalty;
    address signer;
    uint96 rewardPerMillion;
    address heir;
    bytes32 paramsHash;
}

/// @notice What EpochLedger needs to know about a pool to post an epoch.
/// @param signer Signer of the pool.
/// @param startedAt Unix time in seconds at which the pool was started; 0 if it was not.
/// @param challengeWindow See PoolTerms.
/// @param vetoWindow See PoolTerms.
/// @param rewardPerMillion Price of the epoch.
/// @param epochUnits See PoolTerms.
/// @param epochLength See PoolTerms.
/// @param headerQuorum See PoolTerms.
/// @param validatorBond See PoolTerms.
/// @param closesAt See IPoolRegistry.closesAt.
struct PostingTerms {
    address signer;
    uint40 startedAt;
    uint24 challengeWindow;
    uint24 vetoWindow;
    uint96 rewardPerMillion;
    uint56 epochUnits;
    uint24 epochLength;
    uint8 headerQuorum;
    uint96 validatorBond;
    uint256 closesAt;
}

/// @notice What EpochLedger needs to know about a pool to check a promise, and StakeManager about its windows.
/// @param signer Signer of the pool when the promise was signed.
/// @param challengeWindow See PoolTerms.
/// @param vetoWindow See PoolTerms.
/// @param epochLength See PoolTerms.
/// @param epochUnits See PoolTerms.
/// @param closesAt See IPoolRegistry.closesAt.
struct PromiseTerms {
    address signer;
    uint24 challengeWindow;
    uint24 vetoWindow;
    uint24 epochLength;
    uint64 epochUnits;
    uint256 closesAt;
}

/// @notice What StakeManager and SlashingCourt need to know about a pool to handle a case.
/// @param vetoWindow See PoolTerms.
/// @param slashAmount See PoolTerms.
/// @param maxSlashes See PoolTerms.
/// @param unbondWindow See PoolTerms.
/// @param lightSlashBps See PoolTerms.
/// @param strikes See PoolTerms.
/// @param quorum See PoolTerms.
/// @param validatorBond See PoolTerms.
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

/// @title IPoolRegistry
/// @notice Registers pools, their terms, and the accounts that hold a role in them.
/// @dev Roles: the account that creates a pool is its operator. The operator names signer, trainer, arbiter and
/// validators. A role passes to another account `unbondWindow` after the proposal, and that of the arbiter after twice
/// `unbondWindow`, without a second transaction. So a contributor that does not trust the account has time to leave. A
/// proposal that does not hold yet can be replaced, and is cancelled by proposing the present account.
///
/// Price: a raise holds for epochs that begin after `challengeWindow`, a lowering for those that begin after
/// `unbondWindow`. An epoch begins when the previous one is posted, and the first one at time 0.
///
/// Money: the registry holds none. Escrow is in EpochLedger, stake in StakeManager.
///
/// Pause: an account with PAUSER_ROLE can stop new work in all pools at once: creating and starting pools, the stake of
/// contributors, registering and publishing. A pause never stops funding, the bonds of operator and validators, a
/// settlement, claim, challenge, case, unbonding, withdrawal or refund.
///
/// Admin: the admin grants PAUSER_ROLE and has no other power. Its role is transferred with a delay of ADMIN_DELAY.
interface IPoolRegistry {
    /// @notice A pool was created.
    /// @param pool Id of the pool.
    /// @param operator Account that created it.
    /// @param paramsHash keccak256 of `params`.
    /// @param params All parameters of the pool, as text.
    event PoolCreated(uint256 indexed pool, address indexed operator, bytes32 paramsHash, string params);

    /// @notice A pool was opened for work.
    /// @param pool Id of the pool.
    event PoolStarted(uint256 indexed pool);

    /// @notice A pool was ended.
    /// @param pool Id of the pool.
    /// @param closesAt Unix time in seconds at which it closes.
    event PoolEnded(uint256 indexed pool, uint256 closesAt);

    /// @notice The operator said where a pool is served. The newest announcement counts.
    /// @dev Nothing on chain depends on it. A reader must compare what the URL says with the chain.
    /// @param pool Id of the pool.
    /// @param url Base URL of the coordinator; empty if the pool is served nowhere.
    /// @param metadataHash SHA-256 of the description that the coordinator serves; zero if there is none.
    event PoolAnnounced(uint256 indexed pool, string url, bytes32 metadataHash);

    /// @notice A validator was replaced.
    /// @param pool Id of the pool.
    /// @param previous Account that is no longer a validator.
    /// @param current Account that becomes a validator.
    /// @param activeFrom Unix time in seconds from which the verdicts of `current` count.
    event ValidatorReplaced(
        uint256 indexed pool, address indexed previous, address indexed current, uint256 activeFrom
    );

    /// @notice Another account was proposed for a role, or a proposal was cancelled.
    /// @param pool Id of the pool.
    /// @param role The role.
    /// @param account Account that holds the role from then on.
    /// @param start Unix time in seconds; in the past if a proposal was cancelled.
    event RoleProposed(uint256 indexed pool, Role indexed role, address indexed account, uint256 start);

    /// @notice The price was changed, or a change was cancelled.
    /// @param pool Id of the pool.
    /// @param rewardPerMillion Reward for 1,000,000 units.
    /// @param start Unix time in seconds from which epochs that begin have this price; in the past if a change was
    /// cancelled.
    event PriceSet(uint256 indexed pool, uint96 rewardPerMillion, uint256 start);

    /// @notice The operator named who receives the escrow and the bond of the closed pool.
    /// @param pool Id of the pool.
    /// @param heir Account that receives them; zero for the operator.
    event HeirSet(uint256 indexed pool, address heir);

    /// @notice The text `params` does not have the hash that the terms contain.
    /// @param expected Hash in the terms.
    /// @param actual Hash of the text.
    error ParamsMismatch(bytes32 expected, bytes32 actual);

    /// @notice The zero address cannot be trainer, arbiter, token or validator.
    error ZeroAddress();

    /// @notice A quorum is larger than the number of validators, the quorum of verdicts is zero, or there are more than
    /// MAX_VALIDATORS.
    /// @param quorum Quorum in the terms: `headerQuorum` if only that one is invalid.
    /// @param validators Number of validators.
    error InvalidQuorum(uint256 quorum, uint256 validators);

    /// @notice A window is zero or longer than MAX_WINDOW; for `unbondWindow`, longer than MAX_UNBOND_WINDOW.
    /// @param window The window in seconds.
    error InvalidWindow(uint256 window);

    /// @notice The unbonding window is shorter than the challenge and the veto window together.
    /// @dev Stake must outlast every window in which its owner can still be caught.
    /// @param unbondWindow Unbonding window in the terms.
    /// @param required Shortest unbonding window that is allowed.
    error UnbondWindowTooShort(uint256 unbondWindow, uint256 required);

    /// @notice The epoch length is too short, or longer than half of the challenge window.
    /// @dev The ledger keeps KEPT_EPOCHS epochs, which must reach over four times the challenge and the veto window.
    /// @param epochLength Epoch length in the terms.
    /// @param required Shortest epoch length that is allowed, also if `epochLength` is too long.
    error InvalidEpochLength(uint256 epochLength, uint256 required);

    /// @notice The slashing terms contradict each other.
    /// @dev Required are: `lightSlashBps` is at most 10,000; `slashAmount` is at most `minStake`; `maxSlashes` is not
    /// zero; `slashAmount` times `maxSlashes` fits 96 bits; `signerPenalty` and `acceptPenalty` are at
    /// most `validatorBond`.
    error InvalidSlash();

    /// @notice The URL is longer than MAX_URL bytes.
    /// @param length Length of the URL in bytes.
    error UrlTooLong(uint256 length);

    /// @notice The account is already a validator of the pool.
    /// @param validator Account that was named.
    error DuplicateValidator(address validator);

    /// @notice The arbiter cannot be the operator, the signer or a validator, because it judges them.
    /// @param account The arbiter.
    error OfficeConflict(address account);

    /// @notice The account is not a validator of the pool.
    /// @param pool Id of the pool.
    /// @param account Account that was named.
    error NotValidator(uint256 pool, address account);

    /// @notice The caller is not the operator of the pool; in `endPool` and for the role of the arbiter, it is not the
    /// arbiter either.
    /// @param pool Id of the pool.
    /// @param account The caller.
    error NotOperator(uint256 pool, address account);

    /// @notice The account holds the role already, or the price is this already, and no change is pending.
    error NothingToChange();

    /// @notice Another successor of the arbiter is proposed, which only the operator can replace.
    /// @param pool Id of the pool.
    error ProposalPending(uint256 pool);

    /// @notice The pool is not in a state that allows this.
    /// @param pool Id of the pool.
    /// @param state State of the pool; None if the pool does not exist.
    error WrongState(uint256 pool, PoolState state);

    /// @notice Creates a pool with the caller as its operator.
    /// @dev Pools are numbered 1, 2, 3 and so on. Reverts while the registry is paused.
    /// @param terms Parameters that the contracts need.
    /// @param validators Accounts whose verdicts count at once.
    /// @param params All parameters as text, kept in the event. Its keccak256 must be `terms.paramsHash`.
    /// @return pool Id of the new pool.
    function createPool(PoolTerms calldata terms, address[] calldata validators, string calldata params)
        external
        returns (uint256 pool);

    /// @notice Opens a created pool for work.
    /// @dev Operator only. Reverts while the registry is paused.
    /// @param pool Id of the pool.
    function startPool(uint256 pool) external;

    /// @notice Ends a pool for new work.
    /// @dev Operator or arbiter. Settlement, claims and withdrawals go on.
    /// @param pool Id of the pool.
    function endPool(uint256 pool) external;

    /// @notice Says where a pool is served, so that contributors find it with nothing but the chain.
    /// @dev Operator only. It can be repeated, also after the pool has ended, when claims may still need the URL.
    /// @param pool Id of the pool.
    /// @param url Base URL of the coordinator, at most MAX_URL bytes.
    /// @param metadataHash SHA-256 of the description that the coordinator serves; zero if there is none.
    function announce(uint256 pool, string calldata url, bytes32 metadataHash) external;

    /// @notice Replaces a validator by another account.
    /// @dev Operator only. The verdicts of `previous` stop counting at once, those of `current` count after twice
    /// `unbondWindow`. A contributor that does not trust `current` has one window to notice and one to leave.
    /// @param pool Id of the pool.
    /// @param previous Validator to remove.
    /// @param current Account to add.
    function replaceValidator(uint256 pool, address previous, address current) external;

    /// @notice Passes a role to another account, after a delay.
    /// @dev Operator only, in any state of the pool. A proposal replaces one that is pending. The arbiter can propose
    /// its own successor too, but cannot replace a pending proposal, because it could keep its role for ever by that.
    /// The operator, the signer and validators cannot be the arbiter.
    /// @param pool Id of the pool.
    /// @param role The role.
    /// @param account Account that holds the role after `unbondWindow`, or as the arbiter after twice `unbondWindow`.
    function proposeRole(uint256 pool, Role role, address account) external;

    /// @notice Changes the price, after a delay.
    /// @dev Operator only.
    /// @param pool Id of the pool.
    /// @param rewardPerMillion Reward for 1,000,000 units.
    function setPrice(uint256 pool, uint96 rewardPerMillion) external;

    /// @notice Names who receives the escrow and the operator's bond of the closed pool, at once.
    /// @dev Operator only. So a lost operator's key does not lock them up.
    /// @param pool Id of the pool.
    /// @param heir Account that receives them; zero for the operator.
    function setHeir(uint256 pool, address heir) external;

    /// @notice Stops new work in all pools.
    /// @dev PAUSER_ROLE only.
    function pause() external;

    /// @notice Allows new work again.
    /// @dev PAUSER_ROLE only.
    function unpause() external;

    /// @notice Returns whether a pool accepts funds and the bonds of operator and validators, also during a pause.
    /// @param pool Id of the pool.
    /// @return Whether the pool is created or active.
    function isUnended(uint256 pool) external view returns (bool);

    /// @notice Returns whether a pool accepts new stake of contributors and new nodes.
    /// @param pool Id of the pool.
    /// @return Whether the pool is created or active, and the registry is not paused.
    function isOpen(uint256 pool) external view returns (bool);

    /// @notice Returns when a pool closes: `unbondWindow + 4 * (challengeWindow + vetoWindow)` after its end.
    /// @dev By then every promise of the operator can have been claimed or challenged.
    /// @param pool Id of the pool.
    /// @return Unix time in seconds; the maximum of uint256 while the pool has not ended.
    function closesAt(uint256 pool) external view returns (uint256);

    /// @notice Returns the terms of a pool, with the present price, roles and heir.
    /// @param pool Id of the pool.
    /// @return terms The terms; all zero if the pool does not exist.
    function getTerms(uint256 pool) external view returns (PoolTerms memory terms);

    /// @notice Returns what EpochLedger needs to know about a pool.
    /// @param pool Id of the pool.
    /// @param begunAt Unix time in seconds at which the epoch began; it decides the price.
    /// @return Part of the terms, with signer, start and closing time.
    function getPostingTerms(uint256 pool, uint256 begunAt) external view returns (PostingTerms memory);

    /// @notice Returns what an epoch of a pool pays for verdicts.
    /// @param pool Id of the pool.
    /// @return fee Fee for one verdict.
    /// @return most Maximum of verdicts that one epoch pays.
    function getVerdictTerms(uint256 pool) external view returns (uint256 fee, uint256 most);

    /// @notice Returns what EpochLedger needs to know about a pool to check a promise.
    /// @dev A promise stays valid after its signer was replaced.
    /// @param pool Id of the pool.
    /// @param signedAt Unix time in seconds at which the promise was signed.
    /// @return The windows, the closing time, and the signer at that time.
    function getPromiseTerms(uint256 pool, uint256 signedAt) external view returns (PromiseTerms memory);

    /// @notice Returns what StakeManager and SlashingCourt need to know about a pool.
    /// @param pool Id of the pool.
    /// @return Part of the terms.
    function getSlashingTerms(uint256 pool) external view returns (SlashingTerms memory);

    /// @notice Returns the operator of a pool.
    /// @param pool Id of the pool.
    /// @return The operator; the zero address if the pool does not exist.
    function operatorOf(uint256 pool) external view returns (address);

    /// @notice Returns who holds a role, and who was proposed for it.
    /// @param pool Id of the pool.
    /// @param role The role.
    /// @return account Account that holds the role now; zero if the pool does not exist.
    /// @return next Account that will hold it; zero if no change is pending.
    /// @return nextFrom Unix time in seconds from which `next` holds it; zero if no change is pending.
    function getRole(uint256 pool, Role role) external view returns (address account, address next, uint256 nextFrom);

    /// @notice Returns the signer of a pool at a time.
    /// @param pool Id of the pool.
    /// @param at Unix time in seconds.
    /// @return The signer; the zero address if the pool does not exist.
    function signerAt(uint256 pool, uint256 at) external view returns (address);

    /// @notice Returns all prices of a pool, oldest first.
    /// @param pool Id of the pool.
    /// @return prices The first one holds from time 0, and the last one may not hold yet.
    function getPrices(uint256 pool) external view returns (ScheduledPrice[] memory prices);

    /// @notice Returns the price of an epoch.
    /// @param pool Id of the pool.
    /// @param time Unix time in seconds at which the epoch began.
    /// @return Reward for 1,000,000 units.
    function priceAt(uint256 pool, uint256 time) external view returns (uint96);

    /// @notice Returns who receives the escrow and the operator's bond of the closed pool.
    /// @param pool Id of the pool.
    /// @return The heir, or the operator if none is named; the zero address if the pool does not exist.
    function beneficiaryOf(uint256 pool) external view returns (address);

    /// @notice Returns the signer of a pool.
    /// @param pool Id of the pool.
    /// @return The signer; the zero address if the pool does not exist.
    function signerOf(uint256 pool) external view returns (address);

    /// @notice Returns the arbiter of a pool.
    /// @param pool Id of the pool.
    /// @return The arbiter; the zero address if the pool does not exist.
    function arbiterOf(uint256 pool) external view returns (address);

    /// @notice Returns the trainer of a pool.
    /// @param pool Id of the pool.
    /// @return The trainer; the zero address if the pool does not exist.
    function trainerOf(uint256 pool) external view returns (address);

    /// @notice Returns the time from unbonding to withdrawal, in seconds.
    /// @param pool Id of the pool.
    /// @return The window; zero if the pool does not exist.
    function unbondWindowOf(uint256 pool) external view returns (uint256);

    /// @notice Returns what a validator loses for a signature.
    /// @param pool Id of the pool.
    /// @param isFalseAccept Whether it accepted a cheat's work; otherwise it signed a vetoed case or a disabled epoch.
    /// @return `acceptPenalty` or `signerPenalty` of the terms, in the token's smallest unit.
    function penaltyOf(uint256 pool, bool isFalseAccept) external view returns (uint256);

    /// @notice Returns whether contributors need an invitation.
    /// @param pool Id of the pool.
    /// @return Whether the operator must invite a contributor before it can register a node.
    function isInviteOnly(uint256 pool) external view returns (bool);

    /// @notice Returns the token of a pool.
    /// @param pool Id of the pool.
    /// @return The ERC-20 token; the zero address if the pool does not exist.
    function tokenOf(uint256 pool) external view returns (address);

    /// @notice Returns the state of a pool.
    /// @param pool Id of the pool.
    /// @return The state; None if the pool does not exist.
    function stateOf(uint256 pool) external view returns (PoolState);

    /// @notice Returns whether the verdicts of an account count now.
    /// @param pool Id of the pool.
    /// @param account Account to check.
    /// @return Whether the account is an active validator.
    function isValidator(uint256 pool, address account) external view returns (bool);

    /// @notice Returns the validators of a pool, including those that are not active yet.
    /// @param pool Id of the pool.
    /// @return Accounts of the validators.
    function getValidators(uint256 pool) external view returns (address[] memory);
}
