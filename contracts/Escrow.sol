// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {IEpochLedger, Settlement} from "./interfaces/IEpochLedger.sol";
import {Permit} from "./interfaces/IPayouts.sol";
import {LedgerHashes} from "./LedgerHashes.sol";
import {Payouts} from "./Payouts.sol";

// Windows last seconds to days, as each pool chooses. A block producer can shift the block time by seconds at most.
// slither-disable-start timestamp
/// @title Escrow
/// @notice Part of EpochLedger that holds the tokens: a separate escrow for each pool.
abstract contract Escrow is LedgerHashes, Payouts {
    using SafeCast for uint256;

    /// @dev The pool's token, which never changes, is packed with the claimed amount. A claim reads one storage slot
    /// and does not call the registry.
    struct Payout {
        IERC20 token;
        uint96 claimed;
    }

    /// @dev What a contributor has claimed, packed with the account that is paid for it; zero for itself.
    struct Claimant {
        address payee;
        uint96 claimed;
    }

    /// @dev Totals of each pool.
    mapping(uint256 pool => Settlement) internal _settlements;
    /// @dev Token and total of all claims of each pool.
    mapping(uint256 pool => Payout) private _payouts;
    /// @dev Claims and payees of each pool.
    mapping(uint256 pool => mapping(address contributor => Claimant)) private _claimants;
    /// @inheritdoc IEpochLedger
    mapping(uint256 pool => mapping(address contributor => uint256)) public deductionOf;

    /// @inheritdoc IEpochLedger
    function fundPool(uint256 pool, uint256 amount) external nonReentrant {
        _fund(pool, amount);
    }

    /// @inheritdoc IEpochLedger
    function fundPoolWithPermit(uint256 pool, uint256 amount, Permit calldata permit) external nonReentrant {
        // The permit comes first because it approves the tokens. The guard keeps the token from coming back in between.
        // slither-disable-next-line reentrancy-benign
        _permit(IERC20(POOLS.tokenOf(pool)), amount, permit);
        _fund(pool, amount);
    }

    /// @inheritdoc IEpochLedger
    function refundPool(uint256 pool) external nonReentrant {
        uint256 closesAt = POOLS.closesAt(pool);
        if (block.timestamp < closesAt) revert PoolNotClosed(closesAt);
        Settlement storage settlement = _settlements[pool];
        uint256 amount = settlement.funded - settlement.posted;
        if (amount == 0) revert ZeroAmount();

        settlement.funded = settlement.posted;
        address payee = POOLS.beneficiaryOf(pool);

        emit PoolRefunded(pool, payee, amount);

        _pay(pool, _payouts[pool].token, payee, amount);
    }

    /// @inheritdoc IEpochLedger
    function setPayee(uint256 pool, address payee) external {
        _claimants[pool][msg.sender].payee = payee;

        emit PayeeSet(pool, msg.sender, payee);
    }

    /// @inheritdoc IEpochLedger
    function getSettlement(uint256 pool) external view returns (Settlement memory) {
        return _settlements[pool];
    }

    /// @inheritdoc IEpochLedger
    function claimedOf(uint256 pool, address contributor) external view returns (uint256) {
        return _claimants[pool][contributor].claimed;
    }

    /// @inheritdoc IEpochLedger
    function escrowOf(uint256 pool) external view returns (uint256) {
        return _settlements[pool].funded - _payouts[pool].claimed;
    }

    /// @inheritdoc IEpochLedger
    function owedOf(uint256 pool) external view returns (uint256) {
        return _settlements[pool].posted - _payouts[pool].claimed;
    }

    /// @inheritdoc IEpochLedger
    function payeeOf(uint256 pool, address contributor) public view returns (address) {
        address payee = _claimants[pool][contributor].payee;
        return payee == address(0) ? contributor : payee;
    }

    /// @dev Pays a contributor's payee up to `cumulative`, less its deduction, which returns to the unreserved escrow.
    /// Reverts if all claims of the pool together would exceed `ceiling`.
    function _payUpTo(uint256 pool, uint64 epoch, uint256 ceiling, address contributor, uint256 cumulative) internal {
        Claimant memory claimant = _claimants[pool][contributor];
        uint256 before = claimant.claimed;
        if (cumulative <= before) revert NothingToClaim();
        uint256 amount = cumulative - before;
        Payout storage payout = _payouts[pool];
        uint256 claimed = payout.claimed + amount;
        if (claimed > ceiling) revert RewardExceedsEpochs(claimed, ceiling);

        // At most the sum of all claims, so it fits uint96.
        _claimants[pool][contributor].claimed = uint96(cumulative);
        payout.claimed = uint96(claimed);
        uint256 deducted = Math.min(amount, deductionOf[pool][contributor]);
        if (deducted > 0) {
            deductionOf[pool][contributor] -= deducted;
            _settlements[pool].funded += uint96(deducted);
            amount -= deducted;
        }

        emit RewardClaimed(pool, epoch, contributor, amount);

        _pay(pool, payout.token, claimant.payee == address(0) ? contributor : claimant.payee, amount);
    }

    /// @dev Takes tokens from the caller into the escrow of a pool.
    function _fund(uint256 pool, uint256 amount) private {
        if (!POOLS.isUnended(pool)) revert PoolNotOpen(pool);
        if (amount == 0) revert ZeroAmount();
        IERC20 token = IERC20(POOLS.tokenOf(pool));

        _payouts[pool].token = token;
        Settlement storage settlement = _settlements[pool];
        settlement.funded = (uint256(settlement.funded) + amount).toUint96();

        emit PoolFunded(pool, msg.sender, amount);

        _receive(token, amount);
    }
}
// slither-disable-end timestamp
