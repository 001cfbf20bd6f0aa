// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {AccessControlDefaultAdminRules} from
    "@openzeppelin/contracts/access/extensions/AccessControlDefaultAdminRules.sol";
import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";
import {IPoolRegistry, PoolState, PoolTerms, PostingTerms, SlashingTerms} from "./interfaces/IPoolRegistry.sol";

// Windows last seconds to days, as each pool chooses. A block producer can shift the block time by seconds at most.
// slither-disable-start timestamp
/// @title PoolRegistry
/// @notice Registers pools, their terms, and the accounts that hold a role in them.
/// @dev See IPoolRegistry for the rules.
contract PoolRegistry is IPoolRegistry, AccessControlDefaultAdminRules, Pausable {
    /// @dev All that is stored of a pool.
    struct Pool {
        address operator;
        PoolState state;
        uint64 endedAt;
        PoolTerms terms;
        address[] validators;
        /// Unix time in seconds from which the account's verdicts count; 0 if it is not a validator.
        mapping(address account => uint256) activeFrom;
    }

    /// @notice Role that can pause and unpause new work.
    bytes32 public constant PAUSER_ROLE = keccak256("PAUSER_ROLE");
    /// @notice Delay with which the admin's role is transferred.
    uint48 public constant ADMIN_DELAY = 2 days;
    /// @notice Longest challenge and veto window.
    uint256 public constant MAX_WINDOW = 30 days;
    /// @notice Longest unbonding window.
    uint256 public constant MAX_UNBOND_WINDOW = 180 days;
    /// @notice Maximum number of validators of a pool. It bounds the gas of opening a case.
    uint256 public constant MAX_VALIDATORS = 32;
    /// @notice Maximum length of an announced URL in bytes.
    uint256 public constant MAX_URL = 256;
    /// @notice Number of epochs that EpochLedger keeps of each pool; the same as EpochLedger.KEPT_EPOCHS.
    uint256 public constant KEPT_EPOCHS = 256;

    /// @notice Number of pools, which is also the id of the newest one.
    uint256 public poolCount;
    /// @dev Pools by id.
    mapping(uint256 pool => Pool) private _pools;

    modifier onlyOperator(uint256 pool) {
        if (msg.sender != _pools[pool].operator) revert NotOperator(pool, msg.sender);
        _;
    }

    /// @dev The admin is also the first pauser.
    constructor(address admin) AccessControlDefaultAdminRules(ADMIN_DELAY, admin) {
        _grantRole(PAUSER_ROLE, admin);
    }

    /// @inheritdoc IPoolRegistry
    function createPool(PoolTerms calldata terms, address[] calldata validators, string calldata params)
        external
        whenNotPaused
        returns (uint256 pool)
    {
        bytes32 actual = keccak256(bytes(params));
        if (actual != terms.paramsHash) revert ParamsMismatch(terms.paramsHash, actual);
        _requireOffices(terms, validators.length);
        _requireWindows(terms);
        _requireSlash(terms);

        pool = ++poolCount;
        Pool storage created = _pools[pool];
        created.operator = msg.sender;
        created.state = PoolState.Created;
        created.terms = terms;
        if (terms.signer == address(0)) created.terms.signer = msg.sender;
        created.validators = validators;
        for (uint256 i = 0; i < validators.length; ++i) {
            _grantOffice(created, validators[i], block.timestamp);
        }

        emit PoolCreated(pool, msg.sender, terms.paramsHash, params);
    }

    /// @inheritdoc IPoolRegistry
    function startPool(uint256 pool) external whenNotPaused onlyOperator(pool) {
        if (_pools[pool].state != PoolState.Created) revert WrongState(pool, _pools[pool].state);
        _pools[pool].state = PoolState.Active;
        emit PoolStarted(pool);
    }

    /// @inheritdoc IPoolRegistry
    function endPool(uint256 pool) external {
        Pool storage ended = _pools[pool];
        if (msg.sender != ended.operator && msg.sender != ended.terms.arbiter) revert NotOperator(pool, msg.sender);
        if (!_isUnended(ended.state)) revert WrongState(pool, ended.state);

        ended.state = PoolState.Ended;
        ended.endedAt = uint64(block.timestamp);

        emit PoolEnded(pool, closesAt(pool));
    }

    /// @inheritdoc IPoolRegistry
    function announce(uint256 pool, string calldata url, bytes32 metadataHash) external onlyOperator(pool) {
        if (bytes(url).length > MAX_URL) revert UrlTooLong(bytes(url).length);
        emit PoolAnnounced(pool, url, metadataHash);
    }

    /// @inheritdoc IPoolRegistry
    function replaceValidator(uint256 pool, address previous, address current) external onlyOperator(pool) {
        Pool storage changed = _pools[pool];
        if (changed.activeFrom[previous] == 0) revert NotValidator(pool, previous);

        changed.activeFrom[previous] = 0;
        uint256 activeFrom = block.timestamp + 2 * uint256(changed.terms.unbondWindow);
        _grantOffice(changed, current, activeFrom);
        for (uint256 i = 0; i < changed.validators.length; ++i) {
            if (changed.validators[i] == previous) changed.validators[i] = current;
        }

        emit ValidatorReplaced(pool, previous, current, activeFrom);
    }

    /// @inheritdoc IPoolRegistry
    function pause() external onlyRole(PAUSER_ROLE) {
        _pause();
    }

    /// @inheritdoc IPoolRegistry
    function unpause() external onlyRole(PAUSER_ROLE) {
        _unpause();
    }

    /// @inheritdoc IPoolRegistry
    function isOpen(uint256 pool) external view returns (bool) {
        return _isUnended(_pools[pool].state) && !paused();
    }

    /// @inheritdoc IPoolRegistry
    function getTerms(uint256 pool) external view returns (PoolTerms memory) {
        return _pools[pool].terms;
    }

    /// @inheritdoc IPoolRegistry
    function getPostingTerms(uint256 pool) external view returns (PostingTerms memory) {
        Pool storage asked = _pools[pool];
        PoolTerms storage terms = asked.terms;
        return PostingTerms(
            asked.operator,
            asked.state,
            terms.challengeWindow,
            terms.vetoWindow,
            terms.rewardPerMillion,
            terms.epochUnits,
            terms.epochLength,
            closesAt(pool)
        );
    }

    /// @inheritdoc IPoolRegistry
    function getSlashingTerms(uint256 pool) external view returns (SlashingTerms memory) {
        PoolTerms storage terms = _pools[pool].terms;
        return SlashingTerms(
            terms.vetoWindow,
            terms.slashAmount,
            terms.maxSlashes,
            terms.unbondWindow,
            terms.lightSlashBps,
            terms.strikes,
            terms.quorum,
            terms.validatorBond
        );
    }

    /// @inheritdoc IPoolRegistry
    function operatorOf(uint256 pool) external view returns (address) {
        return _pools[pool].operator;
    }

    /// @inheritdoc IPoolRegistry
    function arbiterOf(uint256 pool) external view returns (address) {
        return _pools[pool].terms.arbiter;
    }

    /// @inheritdoc IPoolRegistry
    function trainerOf(uint256 pool) external view returns (address) {
        return _pools[pool].terms.trainer;
    }

    /// @inheritdoc IPoolRegistry
    function unbondWindowOf(uint256 pool) external view returns (uint256) {
        return _pools[pool].terms.unbondWindow;
    }

    /// @inheritdoc IPoolRegistry
    function signerPenaltyOf(uint256 pool) external view returns (uint256) {
        return _pools[pool].terms.signerPenalty;
    }

    /// @inheritdoc IPoolRegistry
    function acceptPenaltyOf(uint256 pool) external view returns (uint256) {
        return _pools[pool].terms.acceptPenalty;
    }

    /// @inheritdoc IPoolRegistry
    function isInviteOnly(uint256 pool) external view returns (bool) {
        return _pools[pool].terms.isInviteOnly;
    }

    /// @inheritdoc IPoolRegistry
    function tokenOf(uint256 pool) external view returns (address) {
        return _pools[pool].terms.token;
    }

    /// @inheritdoc IPoolRegistry
    function stateOf(uint256 pool) external view returns (PoolState) {
        return _pools[pool].state;
    }

    /// @inheritdoc IPoolRegistry
    function isValidator(uint256 pool, address account) external view returns (bool) {
        uint256 activeFrom = _pools[pool].activeFrom[account];
        return activeFrom != 0 && block.timestamp >= activeFrom;
    }

    /// @inheritdoc IPoolRegistry
    function getValidators(uint256 pool) external view returns (address[] memory) {
        return _pools[pool].validators;
    }

    /// @inheritdoc IPoolRegistry
    function closesAt(uint256 pool) public view returns (uint256) {
        Pool storage asked = _pools[pool];
        if (asked.state != PoolState.Ended) return type(uint256).max;
        PoolTerms storage terms = asked.terms;
        return asked.endedAt + terms.unbondWindow + _settlementSpan(terms.challengeWindow, terms.vetoWindow);
    }

    /// @dev Makes an account a validator from `activeFrom` on.
    function _grantOffice(Pool storage pool, address account, uint256 activeFrom) private {
        if (account == address(0)) revert ZeroAddress();
        if (account == pool.terms.arbiter) revert OfficeConflict(account);
        if (pool.activeFrom[account] != 0) revert DuplicateValidator(account);
        pool.activeFrom[account] = activeFrom;
    }

    /// @dev Checks the addresses in the terms and the quorum.
    function _requireOffices(PoolTerms calldata terms, uint256 validators) private view {
        if (terms.trainer == address(0) || terms.arbiter == address(0) || terms.token == address(0)) {
            revert ZeroAddress();
        }
        if (terms.arbiter == msg.sender || terms.arbiter == terms.signer) revert OfficeConflict(terms.arbiter);
        bool isQuorum = terms.quorum > 0 && terms.quorum <= validators && validators <= MAX_VALIDATORS;
        if (!isQuorum) revert InvalidQuorum(terms.quorum, validators);
    }

    // States are few and named. Nothing here is compared with a time or a balance.
    // slither-disable-next-line incorrect-equality
    function _isUnended(PoolState state) private pure returns (bool) {
        return state == PoolState.Created || state == PoolState.Active;
    }

    /// @dev Time for which an epoch must be kept: until it is final, and until everything promised for it has been
    /// challenged and answered.
    function _settlementSpan(uint256 challengeWindow, uint256 vetoWindow) private pure returns (uint256) {
        return 4 * (challengeWindow + vetoWindow);
    }

    /// @dev Checks each window, and that the windows fit together.
    function _requireWindows(PoolTerms calldata terms) private pure {
        _requireWindow(terms.challengeWindow, MAX_WINDOW);
        _requireWindow(terms.vetoWindow, MAX_WINDOW);
        _requireWindow(terms.unbondWindow, MAX_UNBOND_WINDOW);
        uint256 required = uint256(terms.challengeWindow) + terms.vetoWindow;
        if (terms.unbondWindow < required) revert UnbondWindowTooShort(terms.unbondWindow, required);
        uint256 shortest =
            (_settlementSpan(terms.challengeWindow, terms.vetoWindow) + KEPT_EPOCHS - 1) / KEPT_EPOCHS;
        uint256 longest = terms.challengeWindow / 2;
        bool isLengthValid = terms.epochLength >= shortest && terms.epochLength <= longest;
        if (!isLengthValid) revert InvalidEpochLength(terms.epochLength, shortest);
    }

    function _requireWindow(uint256 window, uint256 longest) private pure {
        if (window == 0 || window > longest) revert InvalidWindow(window);
    }

    /// @dev Checks the slashing terms, which InvalidSlash lists.
    function _requireSlash(PoolTerms calldata terms) private pure {
        bool isSlashFit = terms.lightSlashBps <= 10_000 && terms.slashAmount <= terms.minStake;
        uint256 most = uint256(terms.slashAmount) * terms.maxSlashes;
        bool isCapFit = terms.maxSlashes > 0 && most <= type(uint96).max;
        bool arePenaltiesFit =
            terms.signerPenalty <= terms.validatorBond && terms.acceptPenalty <= terms.validatorBond;
        if (!isSlashFit || !isCapFit || !arePenaltiesFit) revert InvalidSlash();
    }
}
// slither-disable-end timestamp
