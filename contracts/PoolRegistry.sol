// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {AccessControlDefaultAdminRules} from
    "@openzeppelin/contracts/access/extensions/AccessControlDefaultAdminRules.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ReentrancyGuard} from "@openzeppelin/contracts/utils/ReentrancyGuard.sol";
import {IPoolRegistry, PoolState, PoolTerms} from "./interfaces/IPoolRegistry.sol";

/// The prose is in IPoolRegistry.
contract PoolRegistry is IPoolRegistry, AccessControlDefaultAdminRules, ReentrancyGuard {
    using SafeERC20 for IERC20;

    struct Pool {
        address operator;
        PoolState state;
        uint64 endedAt;
        uint256 escrow;
        uint256 funded;
        uint256 owed;
        PoolTerms terms;
        address[] validators;
        mapping(address account => bool) isValidator;
    }

    bytes32 public constant LEDGER_ROLE = keccak256("LEDGER_ROLE");

    uint256 public poolCount;
    mapping(uint256 pool => Pool) private _pools;

    constructor(address admin) AccessControlDefaultAdminRules(0, admin) {}

    modifier onlyOperator(uint256 pool) {
        if (msg.sender != _pools[pool].operator) revert NotOperator(pool, msg.sender);
        _;
    }

    modifier inState(uint256 pool, PoolState state) {
        if (_pools[pool].state != state) revert WrongState(pool, _pools[pool].state);
        _;
    }

    function createPool(PoolTerms calldata terms, address[] calldata validators, string calldata params)
        external
        returns (uint256 pool)
    {
        _requireValidTerms(terms, validators.length, params);

        pool = ++poolCount;
        Pool storage created = _pools[pool];
        created.operator = msg.sender;
        created.state = PoolState.Created;
        created.terms = terms;
        created.validators = validators;
        for (uint256 i = 0; i < validators.length; ++i) {
            _grantOffice(created, validators[i]);
        }

        emit PoolCreated(pool, msg.sender, terms.paramsHash, params);
    }

    function fundPool(uint256 pool, uint256 amount) external nonReentrant {
        Pool storage funded = _pools[pool];
        if (funded.state != PoolState.Created && funded.state != PoolState.Active) revert WrongState(pool, funded.state);
        if (amount == 0) revert ZeroAmount();

        funded.escrow += amount;
        funded.funded += amount;

        emit PoolFunded(pool, msg.sender, amount);

        IERC20 token = IERC20(funded.terms.token);
        uint256 balance = token.balanceOf(address(this));
        token.safeTransferFrom(msg.sender, address(this), amount);
        if (token.balanceOf(address(this)) != balance + amount) revert UnsupportedToken(address(token));
    }

    function startPool(uint256 pool) external onlyOperator(pool) inState(pool, PoolState.Created) {
        _pools[pool].state = PoolState.Active;
        emit PoolStarted(pool);
    }

    function endPool(uint256 pool) external onlyOperator(pool) inState(pool, PoolState.Active) {
        _pools[pool].state = PoolState.Ended;
        _pools[pool].endedAt = uint64(block.timestamp);
        emit PoolEnded(pool);
    }

    function refundPool(uint256 pool) external nonReentrant onlyOperator(pool) inState(pool, PoolState.Ended) {
        Pool storage ended = _pools[pool];
        PoolTerms storage terms = ended.terms;
        uint256 availableAt =
            uint256(ended.endedAt) + terms.challengeWindow + terms.vetoWindow + uint256(terms.unbondWindow);
        if (block.timestamp < availableAt) revert TooEarly(availableAt);
        uint256 amount = ended.escrow - ended.owed;
        if (amount == 0) revert ZeroAmount();

        ended.escrow -= amount;

        emit PoolRefunded(pool, msg.sender, amount);

        IERC20(terms.token).safeTransfer(msg.sender, amount);
    }

    function replaceValidator(uint256 pool, address previous, address current) external onlyOperator(pool) {
        Pool storage changed = _pools[pool];
        if (!changed.isValidator[previous]) revert NotValidator(pool, previous);

        changed.isValidator[previous] = false;
        _grantOffice(changed, current);
        for (uint256 i = 0; i < changed.validators.length; ++i) {
            if (changed.validators[i] == previous) changed.validators[i] = current;
        }

        emit ValidatorReplaced(pool, previous, current);
    }

    function reserve(uint256 pool, uint256 amount) external onlyRole(LEDGER_ROLE) {
        Pool storage reserved = _pools[pool];
        uint256 available = reserved.escrow - reserved.owed;
        if (amount > available) revert InsufficientEscrow(pool, amount, available);

        reserved.owed += amount;
    }

    function unreserve(uint256 pool, uint256 amount) external onlyRole(LEDGER_ROLE) {
        Pool storage freed = _pools[pool];
        if (amount > freed.owed) revert InsufficientEscrow(pool, amount, freed.owed);

        freed.owed -= amount;
    }

    function payOut(uint256 pool, address to, uint256 amount) external nonReentrant onlyRole(LEDGER_ROLE) {
        Pool storage paying = _pools[pool];
        if (amount > paying.owed) revert InsufficientEscrow(pool, amount, paying.owed);

        paying.owed -= amount;
        paying.escrow -= amount;

        IERC20(paying.terms.token).safeTransfer(to, amount);
    }

    function getTerms(uint256 pool) external view returns (PoolTerms memory) {
        return _pools[pool].terms;
    }

    function operatorOf(uint256 pool) external view returns (address) {
        return _pools[pool].operator;
    }

    function stateOf(uint256 pool) external view returns (PoolState) {
        return _pools[pool].state;
    }

    function isValidator(uint256 pool, address account) external view returns (bool) {
        return _pools[pool].isValidator[account];
    }

    function getValidators(uint256 pool) external view returns (address[] memory) {
        return _pools[pool].validators;
    }

    function escrowOf(uint256 pool) external view returns (uint256) {
        return _pools[pool].escrow;
    }

    function fundedOf(uint256 pool) external view returns (uint256) {
        return _pools[pool].funded;
    }

    function owedOf(uint256 pool) external view returns (uint256) {
        return _pools[pool].owed;
    }

    function _grantOffice(Pool storage pool, address account) private {
        if (account == address(0)) revert ZeroAddress();
        if (pool.isValidator[account]) revert DuplicateValidator(account);
        pool.isValidator[account] = true;
    }

    function _requireValidTerms(PoolTerms calldata terms, uint256 validators, string calldata params) private pure {
        if (terms.trainer == address(0) || terms.arbiter == address(0) || terms.token == address(0)) {
            revert ZeroAddress();
        }
        bytes32 actual = keccak256(bytes(params));
        if (actual != terms.paramsHash) revert ParamsMismatch(terms.paramsHash, actual);
        if (terms.quorum == 0 || terms.quorum > validators) revert InvalidQuorum(terms.quorum, validators);
        uint256 required = uint256(terms.challengeWindow) + terms.vetoWindow;
        if (terms.unbondWindow < required) revert UnbondWindowTooShort(terms.unbondWindow, required);
    }
}
