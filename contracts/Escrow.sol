// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {IEpochLedger, Settlement} from "./interfaces/IEpochLedger.sol";
import {IPoolRegistry} from "./interfaces/IPoolRegistry.sol";
import {LedgerHashes} from "./LedgerHashes.sol";

// Windows last seconds to days, as each pool chooses. A block producer can shift the block time by seconds at most.
// slither-disable-start timestamp
/// @title Escrow
/// @notice Part of EpochLedger that holds the tokens: a separate escrow for each pool.
abstract contract Escrow is LedgerHashes, ReentrancyGuardTransient {
    using SafeERC20 for IERC20;
    using SafeCast for uint256;

    /// @dev The pool's token, which never changes, is packed with the claimed amount. A claim reads one storage slot
    /// and does not call the registry.
    struct Payout {
        IERC20 token;
        uint96 claimed;
    }

    /// @notice Registry of the pools.
    IPoolRegistry public immutable POOLS;

    /// @dev Totals of each pool.
    mapping(uint256 pool => Settlement) internal _settlements;
    /// @dev Token and total of all claims of each pool.
    mapping(uint256 pool => Payout) private _payouts;
    /// @inheritdoc IEpochLedger
    mapping(uint256 pool => mapping(address contributor => uint256)) public claimedOf;
    /// @inheritdoc IEpochLedger
    mapping(uint256 pool => mapping(address contributor => uint256)) public deductionOf;

    constructor(IPoolRegistry pools) {
        POOLS = pools;
    }

    /// @inheritdoc IEpochLedger
    function fundPool(uint256 pool, uint256 amount) external nonReentrant {
        if (!POOLS.isOpen(pool)) revert PoolNotOpen(pool);
        if (amount == 0) revert ZeroAmount();
        IERC20 token = IERC20(POOLS.tokenOf(pool));

        _payouts[pool].token = token;
        Settlement storage settlement = _settlements[pool];
        settlement.funded = (uint256(settlement.funded) + amount).toUint96();

        emit PoolFunded(pool, msg.sender, amount);

        uint256 balance = token.balanceOf(address(this));
        token.safeTransferFrom(msg.sender, address(this), amount);
        if (token.balanceOf(address(this)) != balance + amount) revert UnsupportedToken(address(token));
    }

    /// @inheritdoc IEpochLedger
    function refundPool(uint256 pool) external nonReentrant {
        if (msg.sender != POOLS.operatorOf(pool)) revert NotOperator(pool, msg.sender);
        uint256 closesAt = POOLS.closesAt(pool);
        if (block.timestamp < closesAt) revert PoolNotClosed(closesAt);
        Settlement storage settlement = _settlements[pool];
        uint256 amount = settlement.funded - settlement.posted;
        if (amount == 0) revert ZeroAmount();

        settlement.funded = settlement.posted;

        emit PoolRefunded(pool, msg.sender, amount);

        _payouts[pool].token.safeTransfer(msg.sender, amount);
    }

    /// @inheritdoc IEpochLedger
    function getSettlement(uint256 pool) external view returns (Settlement memory) {
        return _settlements[pool];
    }

    /// @inheritdoc IEpochLedger
    function escrowOf(uint256 pool) external view returns (uint256) {
        return _settlements[pool].funded - _payouts[pool].claimed;
    }

    /// @inheritdoc IEpochLedger
    function owedOf(uint256 pool) external view returns (uint256) {
        return _settlements[pool].posted - _payouts[pool].claimed;
    }

    /// @dev Pays a contributor up to `cumulative`, less its deduction, which returns to the unreserved escrow. Reverts if
    /// all claims of the pool together would exceed `ceiling`.
    function _payUpTo(uint256 pool, uint64 epoch, uint256 ceiling, address contributor, uint256 cumulative) internal {
        uint256 before = claimedOf[pool][contributor];
        if (cumulative <= before) revert NothingToClaim();
        uint256 amount = cumulative - before;
        Payout storage payout = _payouts[pool];
        uint256 claimed = payout.claimed + amount;
        if (claimed > ceiling) revert RewardExceedsEpochs(claimed, ceiling);

        claimedOf[pool][contributor] = cumulative;
        payout.claimed = uint96(claimed);
        uint256 deducted = Math.min(amount, deductionOf[pool][contributor]);
        if (deducted > 0) {
            deductionOf[pool][contributor] -= deducted;
            _settlements[pool].funded += uint96(deducted);
            amount -= deducted;
        }

        emit RewardClaimed(pool, epoch, contributor, amount);

        if (amount > 0) payout.token.safeTransfer(contributor, amount);
    }
}
// slither-disable-end timestamp
