// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {AccessControlDefaultAdminRules} from
    "@openzeppelin/contracts/access/extensions/AccessControlDefaultAdminRules.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {ReentrancyGuard} from "@openzeppelin/contracts/utils/ReentrancyGuard.sol";
import {IPoolRegistry, PoolState} from "./interfaces/IPoolRegistry.sol";
import {BondKind, IStakeManager, Lock, Unbonding} from "./interfaces/IStakeManager.sol";

/// The prose is in IStakeManager.
contract StakeManager is IStakeManager, AccessControlDefaultAdminRules, ReentrancyGuard {
    using SafeERC20 for IERC20;

    struct Account {
        uint256 bonded;
        uint256 leaving;
        uint256 locked;
        Unbonding[] unbondings;
    }

    bytes32 public constant COURT_ROLE = keccak256("COURT_ROLE");
    bytes32 public constant LEDGER_ROLE = keccak256("LEDGER_ROLE");
    address public constant BURN = 0x000000000000000000000000000000000000dEaD;
    uint256 public constant GRACE = 1 days;
    uint256 public constant MAX_UNBONDINGS = 16;

    IPoolRegistry public immutable POOLS;

    mapping(uint256 pool => mapping(BondKind kind => mapping(address account => Account))) private _accounts;
    mapping(uint256 caseId => Lock) private _locks;

    constructor(IPoolRegistry pools, address admin) AccessControlDefaultAdminRules(0, admin) {
        POOLS = pools;
    }

    function stake(uint256 pool, BondKind kind, uint256 amount) external nonReentrant {
        PoolState state = POOLS.stateOf(pool);
        if (state != PoolState.Created && state != PoolState.Active) revert PoolNotOpen(pool);
        if (amount == 0) revert ZeroAmount();

        _accounts[pool][kind][msg.sender].bonded += amount;

        emit Staked(pool, msg.sender, kind, amount);

        IERC20 token = _tokenOf(pool);
        uint256 balance = token.balanceOf(address(this));
        token.safeTransferFrom(msg.sender, address(this), amount);
        if (token.balanceOf(address(this)) != balance + amount) revert UnsupportedToken(address(token));
    }

    function unbond(uint256 pool, BondKind kind, uint256 amount) external {
        Account storage account = _accounts[pool][kind][msg.sender];
        if (amount == 0) revert ZeroAmount();
        if (amount > account.bonded) revert InsufficientStake(amount, account.bonded);
        if (account.unbondings.length == MAX_UNBONDINGS) revert TooManyUnbondings();

        uint256 availableAt = block.timestamp + POOLS.getTerms(pool).unbondWindow;
        account.bonded -= amount;
        account.leaving += amount;
        account.unbondings.push(Unbonding({amount: amount, availableAt: availableAt}));

        emit StakeUnbonded(pool, msg.sender, kind, amount, availableAt);
    }

    function withdraw(uint256 pool, BondKind kind) external nonReentrant {
        Account storage account = _accounts[pool][kind][msg.sender];
        if (account.locked > 0) revert StakeIsLocked(account.locked);
        uint256 amount = _takeMatured(account);
        if (amount == 0) revert NothingToWithdraw();

        account.leaving -= amount;

        emit StakeWithdrawn(pool, msg.sender, kind, amount);

        _tokenOf(pool).safeTransfer(msg.sender, amount);
    }

    function lock(uint256 pool, address account, uint256 amount, uint256 caseId)
        external
        onlyRole(COURT_ROLE)
        returns (uint256 locked)
    {
        if (_locks[caseId].expiresAt != 0) revert LockExists(caseId);

        Account storage held = _accounts[pool][BondKind.CONTRIBUTOR][account];
        locked = Math.min(amount, _freeOf(held));
        held.locked += locked;
        uint256 expiresAt = block.timestamp + POOLS.getTerms(pool).vetoWindow + GRACE;
        _locks[caseId] = Lock({pool: pool, account: account, amount: locked, expiresAt: expiresAt});

        emit StakeLocked(caseId, pool, account, locked);
    }

    function slash(uint256 caseId) external nonReentrant onlyRole(COURT_ROLE) returns (uint256 amount) {
        Lock memory held = _locks[caseId];
        if (held.expiresAt == 0) revert NoLock(caseId);
        if (block.timestamp >= held.expiresAt) revert LockExpired(held.expiresAt);

        delete _locks[caseId];
        Account storage account = _accounts[held.pool][BondKind.CONTRIBUTOR][held.account];
        account.locked -= held.amount;
        amount = held.amount;
        _burn(held.pool, account, held.account, amount);
    }

    function release(uint256 caseId) external onlyRole(COURT_ROLE) {
        if (_locks[caseId].expiresAt == 0) revert NoLock(caseId);
        _release(caseId);
    }

    function releaseExpired(uint256 caseId) external {
        uint256 expiresAt = _locks[caseId].expiresAt;
        if (expiresAt == 0) revert NoLock(caseId);
        if (block.timestamp < expiresAt) revert LockNotExpired(expiresAt);
        _release(caseId);
    }

    function slashNow(uint256 pool, address account, uint256 amount)
        external
        nonReentrant
        onlyRole(COURT_ROLE)
        returns (uint256 slashed)
    {
        Account storage held = _accounts[pool][BondKind.CONTRIBUTOR][account];
        // What backs another open case stays there, so that this case can still be executed in full.
        slashed = Math.min(amount, _freeOf(held));
        _burn(pool, held, account, slashed);
    }

    function payFromOperator(uint256 pool, address recipient, uint256 amount)
        external
        nonReentrant
        onlyRole(LEDGER_ROLE)
        returns (uint256 paid)
    {
        address operator = POOLS.operatorOf(pool);
        Account storage held = _accounts[pool][BondKind.OPERATOR][operator];
        paid = Math.min(amount, _freeOf(held));
        _take(held, paid);

        emit BondPaid(pool, operator, recipient, paid);

        if (paid > 0) _tokenOf(pool).safeTransfer(recipient, paid);
    }

    function stakeOf(uint256 pool, BondKind kind, address account) external view returns (uint256) {
        return _accounts[pool][kind][account].bonded;
    }

    function unbondingsOf(uint256 pool, BondKind kind, address account) external view returns (Unbonding[] memory) {
        return _accounts[pool][kind][account].unbondings;
    }

    function lockedOf(uint256 pool, address account) external view returns (uint256) {
        return _accounts[pool][BondKind.CONTRIBUTOR][account].locked;
    }

    function getLock(uint256 caseId) external view returns (Lock memory) {
        return _locks[caseId];
    }

    function _release(uint256 caseId) private {
        Lock memory held = _locks[caseId];
        delete _locks[caseId];
        _accounts[held.pool][BondKind.CONTRIBUTOR][held.account].locked -= held.amount;
        emit StakeReleased(caseId, held.pool, held.account, held.amount);
    }

    function _burn(uint256 pool, Account storage held, address account, uint256 amount) private {
        _take(held, amount);
        emit StakeSlashed(pool, account, BondKind.CONTRIBUTOR, amount);
        if (amount > 0) _tokenOf(pool).safeTransfer(BURN, amount);
    }

    // Stake that stays goes first, then the newest unbonding: what is nearest to its exit is touched last.
    function _take(Account storage held, uint256 amount) private {
        uint256 fromBonded = Math.min(amount, held.bonded);
        held.bonded -= fromBonded;
        uint256 rest = amount - fromBonded;
        held.leaving -= rest;
        while (rest > 0) {
            Unbonding storage newest = held.unbondings[held.unbondings.length - 1];
            uint256 part = Math.min(rest, newest.amount);
            newest.amount -= part;
            rest -= part;
            if (newest.amount == 0) held.unbondings.pop();
        }
    }

    // All unbondings of a pool wait equally long, so the matured ones stand in front.
    function _takeMatured(Account storage account) private returns (uint256 amount) {
        uint256 length = account.unbondings.length;
        uint256 matured = 0;
        while (matured < length && account.unbondings[matured].availableAt <= block.timestamp) {
            amount += account.unbondings[matured].amount;
            ++matured;
        }
        for (uint256 i = matured; i < length; ++i) {
            account.unbondings[i - matured] = account.unbondings[i];
        }
        for (uint256 i = 0; i < matured; ++i) {
            account.unbondings.pop();
        }
    }

    function _freeOf(Account storage account) private view returns (uint256) {
        return account.bonded + account.leaving - account.locked;
    }

    function _tokenOf(uint256 pool) private view returns (IERC20) {
        return IERC20(POOLS.getTerms(pool).token);
    }
}
