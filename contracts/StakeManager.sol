// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {Attestation} from "./interfaces/ICoveyTypes.sol";
import {Permit} from "./interfaces/IPayouts.sol";
import {IPoolRegistry, PromiseTerms, SlashingTerms} from "./interfaces/IPoolRegistry.sol";
import {Balance, BondKind, Exposure, Hold, IStakeManager, Unbonding} from "./interfaces/IStakeManager.sol";
import {Payouts} from "./Payouts.sol";

// Windows last seconds to days, as each pool chooses. A block producer can shift the block time by seconds at most.
// slither-disable-start timestamp
/// @title StakeManager
/// @notice Holds the bonds of contributors, validators and operators, separately for each pool.
/// @dev See IStakeManager for the rules.
contract StakeManager is IStakeManager, Payouts {
    using SafeCast for uint256;

    /// @notice Address that receives slashed stake. Nobody has its key.
    address public constant BURN = 0x000000000000000000000000000000000000dEaD;
    /// @notice Maximum number of unbondings of one account, pool and kind of bond.
    uint256 public constant MAX_UNBONDINGS = 16;

    /// @notice The only account that can draw on an operator's bond.
    address public immutable LEDGER;
    /// @notice The only account that can lock, release and slash stake.
    address public immutable COURT;

    /// @dev Bonded and leaving stake.
    mapping(uint256 pool => mapping(BondKind kind => mapping(address account => Balance))) private _balances;
    /// @dev Unbondings, oldest first.
    mapping(uint256 pool => mapping(BondKind kind => mapping(address account => Unbonding[]))) private _unbondings;
    /// @dev What cases have locked of each contributor's stake.
    mapping(uint256 pool => mapping(address contributor => Exposure)) private _exposures;

    modifier onlyCourt() {
        if (msg.sender != COURT) revert NotCourt(msg.sender);
        _;
    }

    // Ledger and court check in their own constructors that this contract names them, so neither can be zero.
    // slither-disable-next-line missing-zero-check
    constructor(IPoolRegistry pools, address ledger, address court) Payouts(pools) {
        LEDGER = ledger;
        COURT = court;
    }

    /// @inheritdoc IStakeManager
    function stake(uint256 pool, BondKind kind, uint256 amount) external nonReentrant {
        _stake(pool, kind, amount);
    }

    /// @inheritdoc IStakeManager
    function stakeWithPermit(uint256 pool, BondKind kind, uint256 amount, Permit calldata permit)
        external
        nonReentrant
    {
        // The permit comes first because it approves the tokens. The guard keeps the token from coming back in between.
        // slither-disable-next-line reentrancy-benign
        _permit(IERC20(POOLS.tokenOf(pool)), amount, permit);
        _stake(pool, kind, amount);
    }

    /// @inheritdoc IStakeManager
    function unbond(uint256 pool, BondKind kind, uint256 amount) external {
        if (kind == BondKind.OPERATOR) _requireOperator(pool);
        Balance storage balance = _balances[pool][kind][_holderOf(kind, msg.sender)];
        Unbonding[] storage unbondings = _unbondings[pool][kind][_holderOf(kind, msg.sender)];
        if (amount == 0) revert ZeroAmount();
        if (amount > balance.bonded) revert InsufficientStake(amount, balance.bonded);
        if (unbondings.length == MAX_UNBONDINGS) revert TooManyUnbondings();

        uint256 availableAt = block.timestamp + POOLS.unbondWindowOf(pool);
        balance.bonded -= uint128(amount);
        balance.leaving += uint128(amount);
        unbondings.push(Unbonding({amount: uint128(amount), availableAt: uint128(availableAt)}));

        emit StakeUnbonded(pool, msg.sender, kind, amount, availableAt);
    }

    /// @inheritdoc IStakeManager
    function withdraw(uint256 pool, BondKind kind) external nonReentrant {
        if (kind == BondKind.CONTRIBUTOR) _requireUnlocked(_exposures[pool][msg.sender].locked);
        if (kind == BondKind.OPERATOR) _requireClosed(pool);
        address payee = kind == BondKind.OPERATOR ? POOLS.beneficiaryOf(pool) : msg.sender;
        uint256 amount = kind == BondKind.OPERATOR ? _takeBond(pool) : _takeMatured(pool, kind);
        if (amount == 0) revert NothingToWithdraw();

        emit StakeWithdrawn(pool, payee, kind, amount);

        _pay(pool, IERC20(POOLS.tokenOf(pool)), payee, amount);
    }

    /// @inheritdoc IStakeManager
    function lock(uint256 pool, address contributor, bool isHeavy) external onlyCourt returns (Hold memory held) {
        SlashingTerms memory terms = POOLS.getSlashingTerms(pool);
        Exposure memory exposure = _exposures[pool][contributor];
        uint32 span = uint32(block.timestamp / terms.unbondWindow);
        // Spans are numbers, so every case is in exactly one.
        // slither-disable-next-line incorrect-equality
        uint256 taken = exposure.takenIn == span ? exposure.taken : 0;
        uint256 cap = uint256(terms.slashAmount) * terms.maxSlashes;
        if (taken > 0 && taken >= cap) revert SlashCapReached((uint256(span) + 1) * terms.unbondWindow);
        uint256 due = terms.slashAmount;
        if (!isHeavy && exposure.strikes < terms.strikes) due = due * terms.lightSlashBps / 10_000;
        uint256 free = _totalOf(pool, BondKind.CONTRIBUTOR, contributor) - exposure.locked;
        // At most `slashAmount`, so it fits uint96.
        uint96 amount = uint96(Math.min(Math.min(due, cap - taken), free));
        if (amount == 0 && due > 0) revert NoFreeStake();

        _exposures[pool][contributor] =
            Exposure(exposure.locked + amount, (taken + amount).toUint96(), span, exposure.strikes + 1);
        return Hold(amount, span);
    }

    /// @inheritdoc IStakeManager
    function slash(uint256 pool, address contributor, uint96 amount) external nonReentrant onlyCourt {
        _exposures[pool][contributor].locked -= amount;
        _burn(pool, BondKind.CONTRIBUTOR, contributor, amount);
    }

    /// @inheritdoc IStakeManager
    function release(uint256 pool, address contributor, Hold calldata held) external onlyCourt {
        Exposure storage exposure = _exposures[pool][contributor];
        exposure.locked -= held.amount;
        --exposure.strikes;
        if (exposure.takenIn == held.span) exposure.taken -= held.amount;
    }

    /// @inheritdoc IStakeManager
    function slashValidator(uint256 pool, address validator, bool isFalseAccept)
        external
        nonReentrant
        onlyCourt
        returns (uint256 amount)
    {
        amount = Math.min(POOLS.penaltyOf(pool, isFalseAccept), _totalOf(pool, BondKind.VALIDATOR, validator));
        _burn(pool, BondKind.VALIDATOR, validator, amount);
    }

    /// @inheritdoc IStakeManager
    function payFromOperator(uint256 pool, address recipient, uint256 amount)
        external
        nonReentrant
        returns (uint256 paid)
    {
        if (msg.sender != LEDGER) revert NotLedger(msg.sender);
        address operator = POOLS.operatorOf(pool);
        // At most half, because the same amount is burned.
        paid = Math.min(amount, _totalOf(pool, BondKind.OPERATOR, operator) / 2);
        _take(pool, BondKind.OPERATOR, operator, paid);

        emit BondPaid(pool, operator, recipient, paid);

        // The bond is taken before both payments. A credit is written after the first one, and the guard keeps the
        // token from coming back in between.
        // slither-disable-next-line reentrancy-no-eth
        _burn(pool, BondKind.OPERATOR, operator, paid);
        _pay(pool, IERC20(POOLS.tokenOf(pool)), recipient, paid);
    }

    /// @inheritdoc IStakeManager
    function stakeOf(uint256 pool, BondKind kind, address account) external view returns (uint256) {
        return _balances[pool][kind][_holderOf(kind, account)].bonded;
    }

    /// @inheritdoc IStakeManager
    function backingOf(uint256 pool, BondKind kind, address account) external view returns (uint256) {
        return _totalOf(pool, kind, account);
    }

    /// @inheritdoc IStakeManager
    function requireAttested(
        uint256 pool,
        bytes32 digest,
        Attestation[] calldata attestations,
        uint256 requiredBond,
        uint256 quorum
    ) external view {
        address last = address(0);
        uint256 valid = 0;
        for (uint256 i = 0; i < attestations.length; ++i) {
            // A malformed signature recovers the zero address.
            // slither-disable-next-line unused-return
            (address validator,,) = ECDSA.tryRecover(digest, attestations[i].r, attestations[i].vs);
            // A pool has at most MAX_VALIDATORS, and a caller that sends more signatures pays the gas itself.
            // slither-disable-next-line calls-loop
            if (validator <= last || !POOLS.isValidator(pool, validator)) continue;
            if (_lastingBondOf(pool, validator, requiredBond) < requiredBond) continue;
            last = validator;
            ++valid;
        }
        if (valid < quorum) revert QuorumNotReached(valid, quorum);
    }

    /// @inheritdoc IStakeManager
    function lockedOf(uint256 pool, address contributor) external view returns (uint256) {
        return _exposures[pool][contributor].locked;
    }

    /// @inheritdoc IStakeManager
    function getBalance(uint256 pool, BondKind kind, address account) external view returns (Balance memory) {
        return _balances[pool][kind][_holderOf(kind, account)];
    }

    /// @inheritdoc IStakeManager
    function getExposure(uint256 pool, address contributor) external view returns (Exposure memory) {
        return _exposures[pool][contributor];
    }

    /// @inheritdoc IStakeManager
    function unbondingsOf(uint256 pool, BondKind kind, address account) external view returns (Unbonding[] memory) {
        return _unbondings[pool][kind][_holderOf(kind, account)];
    }

    /// @inheritdoc IStakeManager
    function requireBonded(uint256 pool, address validator, uint256 requiredBond) external view {
        if (!POOLS.isValidator(pool, validator)) revert NotValidator(pool, validator);
        uint256 bond = _lastingBondOf(pool, validator, requiredBond);
        if (bond < requiredBond) revert BondTooSmall(validator, bond, requiredBond);
    }

    /// @inheritdoc IStakeManager
    function lastingBondOf(uint256 pool, address validator) external view returns (uint256) {
        return _lastingBondOf(pool, validator, type(uint256).max);
    }

    /// @dev Takes tokens from the caller and bonds them.
    function _stake(uint256 pool, BondKind kind, uint256 amount) private {
        // A pause must not cost an operator or a validator its bond, so it stops only the stake of contributors.
        bool isAccepted = kind == BondKind.CONTRIBUTOR ? POOLS.isOpen(pool) : POOLS.isUnended(pool);
        if (!isAccepted) revert PoolNotOpen(pool);
        if (amount == 0) revert ZeroAmount();
        if (kind == BondKind.OPERATOR) _requireOperator(pool);

        _balances[pool][kind][_holderOf(kind, msg.sender)].bonded += amount.toUint128();

        emit Staked(pool, msg.sender, kind, amount);

        _receive(IERC20(POOLS.tokenOf(pool)), amount);
    }

    /// @dev Takes stake from an account and burns it. What the token refuses is credited to BURN, and anyone can repeat
    /// the burn with `withdrawCredit`.
    function _burn(uint256 pool, BondKind kind, address account, uint256 amount) private {
        _take(pool, kind, account, amount);
        emit StakeSlashed(pool, account, kind, amount);
        _pay(pool, IERC20(POOLS.tokenOf(pool)), BURN, amount);
    }

    /// @dev Takes bonded stake first, then unbondings from the newest to the oldest. What would be withdrawn soonest
    /// goes last.
    function _take(uint256 pool, BondKind kind, address owner, uint256 amount) private {
        Balance storage held = _balances[pool][kind][_holderOf(kind, owner)];
        uint128 fromBonded = uint128(Math.min(amount, held.bonded));
        uint128 rest = amount.toUint128() - fromBonded;
        held.bonded -= fromBonded;
        if (rest == 0) return;
        held.leaving -= rest;
        Unbonding[] storage unbondings = _unbondings[pool][kind][_holderOf(kind, owner)];
        while (rest > 0) {
            Unbonding storage newest = unbondings[unbondings.length - 1];
            uint128 part = uint128(Math.min(rest, newest.amount));
            newest.amount -= part;
            rest -= part;
            if (newest.amount == 0) unbondings.pop();
        }
    }

    /// @dev Takes the whole bond of the operator of a closed pool, unbonded or not, and returns it.
    function _takeBond(uint256 pool) private returns (uint256 amount) {
        amount = _totalOf(pool, BondKind.OPERATOR, address(0));
        delete _balances[pool][BondKind.OPERATOR][address(0)];
        delete _unbondings[pool][BondKind.OPERATOR][address(0)];
    }

    /// @dev Takes the caller's matured unbondings and returns their sum. All unbondings of a pool wait equally long, so
    /// the matured ones come first.
    function _takeMatured(uint256 pool, BondKind kind) private returns (uint128 amount) {
        Unbonding[] storage unbondings = _unbondings[pool][kind][msg.sender];
        uint256 length = unbondings.length;
        uint256 matured = 0;
        while (matured < length && unbondings[matured].availableAt <= block.timestamp) {
            amount += unbondings[matured].amount;
            ++matured;
        }
        for (uint256 i = matured; i < length; ++i) {
            unbondings[i - matured] = unbondings[i];
        }
        for (uint256 i = 0; i < matured; ++i) {
            unbondings.pop();
        }
        _balances[pool][kind][msg.sender].leaving -= amount;
    }

    /// @dev Bonded and leaving stake together.
    function _totalOf(uint256 pool, BondKind kind, address account) private view returns (uint256) {
        Balance memory balance = _balances[pool][kind][_holderOf(kind, account)];
        return uint256(balance.bonded) + balance.leaving;
    }

    /// @dev What is bonded and, unless that is enough, what leaves at least a finality window from now.
    function _lastingBondOf(uint256 pool, address validator, uint256 enough) private view returns (uint256 bond) {
        Balance memory balance = _balances[pool][BondKind.VALIDATOR][validator];
        bond = balance.bonded;
        if (bond >= enough || balance.leaving == 0) return bond;
        // Only for a validator that is leaving, in the loop of the callers.
        // slither-disable-next-line calls-loop
        PromiseTerms memory terms = POOLS.getPromiseTerms(pool, block.timestamp);
        uint256 leavesAt = block.timestamp + terms.challengeWindow + terms.vetoWindow;
        Unbonding[] storage unbondings = _unbondings[pool][BondKind.VALIDATOR][validator];
        for (uint256 i = unbondings.length; i > 0 && unbondings[i - 1].availableAt >= leavesAt; --i) {
            bond += unbondings[i - 1].amount;
        }
    }

    function _requireOperator(uint256 pool) private view {
        if (msg.sender != POOLS.operatorOf(pool)) revert NotOperator(pool, msg.sender);
    }

    function _requireClosed(uint256 pool) private view {
        uint256 closesAt = POOLS.closesAt(pool);
        if (block.timestamp < closesAt) revert PoolNotClosed(closesAt);
    }

    /// @dev Key of a balance. The operator's bond belongs to the pool, so that it survives a change of the operator.
    function _holderOf(BondKind kind, address account) private pure returns (address) {
        return kind == BondKind.OPERATOR ? address(0) : account;
    }

    function _requireUnlocked(uint256 locked) private pure {
        if (locked > 0) revert StakeIsLocked(locked);
    }
}
// slither-disable-end timestamp
