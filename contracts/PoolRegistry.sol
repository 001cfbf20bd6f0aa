// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {AccessControlDefaultAdminRules} from
    "@openzeppelin/contracts/access/extensions/AccessControlDefaultAdminRules.sol";
import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";
import {IPoolRegistry, PoolState, PoolTerms, PostingTerms, PromiseTerms, Role, ScheduledPrice, SlashingTerms} from
    "./interfaces/IPoolRegistry.sol";
import {Schedules} from "./Schedules.sol";
import {TermsChecks} from "./TermsChecks.sol";

// Windows last seconds to days, as each pool chooses. A block producer can shift the block time by seconds at most.
// slither-disable-start timestamp
/// @title PoolRegistry
/// @notice Registers pools, their terms, and the accounts that hold a role in them.
/// @dev See IPoolRegistry for the rules.
contract PoolRegistry is IPoolRegistry, TermsChecks, AccessControlDefaultAdminRules, Pausable {
    using Schedules for Schedules.Schedule;

    /// @dev All that is stored of a pool. Price, signer, trainer and arbiter of `terms` are those of its creation.
    struct Pool {
        PoolState state;
        uint40 startedAt;
        uint64 endedAt;
        PoolTerms terms;
        address[] validators;
        /// Unix time in seconds from which the account's verdicts count; 0 if it is not a validator.
        mapping(address account => uint256) activeFrom;
        mapping(Role role => Schedules.Schedule) roles;
        Schedules.Schedule prices;
    }

    /// @notice Role that can pause and unpause new work.
    bytes32 public constant PAUSER_ROLE = keccak256("PAUSER_ROLE");
    /// @notice Delay with which the admin's role is transferred.
    uint48 public constant ADMIN_DELAY = 2 days;

    /// @notice Number of pools, which is also the id of the newest one.
    uint256 public poolCount;
    /// @dev Pools by id.
    mapping(uint256 pool => Pool) private _pools;

    modifier onlyOperator(uint256 pool) {
        if (msg.sender != operatorOf(pool)) revert NotOperator(pool, msg.sender);
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
        _requireParams(terms, params);
        _requireOffices(terms, validators.length);
        _requireWindows(terms);
        _requireSlash(terms);

        pool = ++poolCount;
        Pool storage created = _pools[pool];
        created.state = PoolState.Created;
        created.terms = terms;
        created.prices.start(terms.rewardPerMillion);
        created.roles[Role.Operator].start(uint160(msg.sender));
        created.roles[Role.Signer].start(uint160(terms.signer == address(0) ? msg.sender : terms.signer));
        created.roles[Role.Trainer].start(uint160(terms.trainer));
        created.roles[Role.Arbiter].start(uint160(terms.arbiter));
        created.validators = validators;
        for (uint256 i = 0; i < validators.length; ++i) {
            _grantOffice(created, validators[i], block.timestamp);
        }

        emit PoolCreated(pool, msg.sender, terms.paramsHash, params);
    }

    /// @inheritdoc IPoolRegistry
    function startPool(uint256 pool) external whenNotPaused onlyOperator(pool) {
        if (_pools[pool].state != PoolState.Created) revert WrongState(pool, _pools[pool].state);
        (_pools[pool].state, _pools[pool].startedAt) = (PoolState.Active, uint40(block.timestamp));
        emit PoolStarted(pool);
    }

    /// @inheritdoc IPoolRegistry
    function endPool(uint256 pool) external {
        Pool storage ended = _pools[pool];
        if (msg.sender != operatorOf(pool) && msg.sender != arbiterOf(pool)) revert NotOperator(pool, msg.sender);
        if (!isUnended(pool)) revert WrongState(pool, ended.state);

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
    function proposeRole(uint256 pool, Role role, address account) external {
        Pool storage changed = _pools[pool];
        if (msg.sender != operatorOf(pool)) {
            if (role != Role.Arbiter || msg.sender != arbiterOf(pool)) revert NotOperator(pool, msg.sender);
            if (changed.roles[role].newest.from > block.timestamp) revert ProposalPending(pool);
        }
        if (account == address(0)) revert ZeroAddress();
        if (role == Role.Arbiter) _requireImpartial(changed, account);
        bool isJudged = role == Role.Operator || role == Role.Signer;
        if (isJudged && _holds(changed, Role.Arbiter, account)) revert OfficeConflict(account);

        uint256 delay = uint256(changed.terms.unbondWindow) * (role == Role.Arbiter ? 2 : 1);
        if (!changed.roles[role].announce(uint160(account), block.timestamp + delay)) revert NothingToChange();

        emit RoleProposed(pool, role, account, changed.roles[role].newest.from);
    }

    /// @inheritdoc IPoolRegistry
    function setPrice(uint256 pool, uint96 rewardPerMillion) external onlyOperator(pool) {
        Pool storage changed = _pools[pool];
        bool isRaise = rewardPerMillion > changed.prices.valueAt(block.timestamp);
        uint256 delay = isRaise ? changed.terms.challengeWindow : changed.terms.unbondWindow;
        if (!changed.prices.announce(rewardPerMillion, block.timestamp + delay)) revert NothingToChange();

        emit PriceSet(pool, rewardPerMillion, changed.prices.newest.from);
    }

    /// @inheritdoc IPoolRegistry
    function setHeir(uint256 pool, address heir) external onlyOperator(pool) {
        _pools[pool].terms.heir = heir;
        emit HeirSet(pool, heir);
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
        return isUnended(pool) && !paused();
    }

    /// @inheritdoc IPoolRegistry
    function getTerms(uint256 pool) external view returns (PoolTerms memory terms) {
        terms = _pools[pool].terms;
        terms.rewardPerMillion = uint96(_pools[pool].prices.valueAt(block.timestamp));
        terms.signer = signerOf(pool);
        terms.trainer = trainerOf(pool);
        terms.arbiter = arbiterOf(pool);
    }

    /// @inheritdoc IPoolRegistry
    function getPostingTerms(uint256 pool, uint256 begunAt) external view returns (PostingTerms memory) {
        Pool storage asked = _pools[pool];
        PoolTerms storage terms = asked.terms;
        return PostingTerms(
            signerOf(pool),
            asked.startedAt,
            terms.challengeWindow,
            terms.vetoWindow,
            uint96(asked.prices.valueAt(begunAt)),
            terms.epochUnits,
            terms.epochLength,
            terms.headerQuorum,
            terms.validatorBond,
            closesAt(pool)
        );
    }

    /// @inheritdoc IPoolRegistry
    function getVerdictTerms(uint256 pool) external view returns (uint256 fee, uint256 most) {
        return (_pools[pool].terms.verdictFee, _pools[pool].terms.epochVerdicts);
    }

    /// @inheritdoc IPoolRegistry
    function getPromiseTerms(uint256 pool, uint256 signedAt) external view returns (PromiseTerms memory) {
        PoolTerms storage terms = _pools[pool].terms;
        return PromiseTerms(
            signerAt(pool, signedAt),
            terms.challengeWindow,
            terms.vetoWindow,
            terms.epochLength,
            terms.epochUnits,
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
    function getRole(uint256 pool, Role role) external view returns (address account, address next, uint256 nextFrom) {
        Schedules.Entry memory newest = _pools[pool].roles[role].newest;
        account = _accountOf(pool, role);
        if (newest.from > block.timestamp) (next, nextFrom) = (address(newest.value), newest.from);
    }

    /// @inheritdoc IPoolRegistry
    function getPrices(uint256 pool) external view returns (ScheduledPrice[] memory prices) {
        Schedules.Entry[] memory entries = _pools[pool].prices.list();
        prices = new ScheduledPrice[](entries.length);
        for (uint256 i = 0; i < entries.length; ++i) {
            prices[i] = ScheduledPrice(uint96(entries[i].value), entries[i].from);
        }
    }

    /// @inheritdoc IPoolRegistry
    function priceAt(uint256 pool, uint256 time) external view returns (uint96) {
        return uint96(_pools[pool].prices.valueAt(time));
    }

    /// @inheritdoc IPoolRegistry
    function beneficiaryOf(uint256 pool) external view returns (address) {
        address heir = _pools[pool].terms.heir;
        return heir == address(0) ? operatorOf(pool) : heir;
    }

    /// @inheritdoc IPoolRegistry
    function unbondWindowOf(uint256 pool) external view returns (uint256) {
        return _pools[pool].terms.unbondWindow;
    }

    /// @inheritdoc IPoolRegistry
    function penaltyOf(uint256 pool, bool isFalseAccept) external view returns (uint256) {
        return isFalseAccept ? _pools[pool].terms.acceptPenalty : _pools[pool].terms.signerPenalty;
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
    function operatorOf(uint256 pool) public view returns (address) {
        return _accountOf(pool, Role.Operator);
    }

    /// @inheritdoc IPoolRegistry
    function signerOf(uint256 pool) public view returns (address) {
        return _accountOf(pool, Role.Signer);
    }

    /// @inheritdoc IPoolRegistry
    function signerAt(uint256 pool, uint256 at) public view returns (address) {
        return address(_pools[pool].roles[Role.Signer].valueAt(at));
    }

    /// @inheritdoc IPoolRegistry
    function trainerOf(uint256 pool) public view returns (address) {
        return _accountOf(pool, Role.Trainer);
    }

    /// @inheritdoc IPoolRegistry
    function arbiterOf(uint256 pool) public view returns (address) {
        return _accountOf(pool, Role.Arbiter);
    }

    /// @inheritdoc IPoolRegistry
    function isUnended(uint256 pool) public view returns (bool) {
        // States are few and named. Nothing here is compared with a time or a balance.
        // slither-disable-next-line incorrect-equality
        return _pools[pool].state == PoolState.Created || _pools[pool].state == PoolState.Active;
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
        if (_holds(pool, Role.Arbiter, account)) revert OfficeConflict(account);
        if (pool.activeFrom[account] != 0) revert DuplicateValidator(account);
        pool.activeFrom[account] = activeFrom;
    }

    /// @dev Account that holds a role now.
    function _accountOf(uint256 pool, Role role) private view returns (address) {
        return address(_pools[pool].roles[role].valueAt(block.timestamp));
    }

    /// @dev Whether an account holds a role now or was proposed for it.
    function _holds(Pool storage pool, Role role, address account) private view returns (bool) {
        Schedules.Schedule storage schedule = pool.roles[role];
        return account == address(schedule.newest.value) || account == address(schedule.valueAt(block.timestamp));
    }

    /// @dev Reverts if an account that is to be the arbiter has a role that the arbiter judges.
    function _requireImpartial(Pool storage pool, address account) private view {
        bool isOperator = _holds(pool, Role.Operator, account) || _holds(pool, Role.Signer, account);
        if (isOperator || pool.activeFrom[account] != 0) revert OfficeConflict(account);
    }
}
// slither-disable-end timestamp
