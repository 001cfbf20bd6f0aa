// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/IERC20Permit.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {IPayouts, Permit} from "./interfaces/IPayouts.sol";
import {IPoolRegistry} from "./interfaces/IPoolRegistry.sol";

/// @title Payouts
/// @notice Part of EpochLedger and StakeManager that takes and pays tokens.
/// @dev See IPayouts for the rules. All functions that move tokens share one reentrancy guard, so no token can change
/// the contract's balance while a payment is measured.
abstract contract Payouts is IPayouts, ReentrancyGuardTransient {
    using SafeERC20 for IERC20;

    /// @notice Gas that one transfer of a token may use.
    uint256 public constant TRANSFER_GAS = 300_000;

    /// @notice Registry of the pools.
    IPoolRegistry public immutable POOLS;

    /// @inheritdoc IPayouts
    mapping(uint256 pool => mapping(address account => uint256)) public creditOf;

    constructor(IPoolRegistry pools) {
        POOLS = pools;
    }

    /// @inheritdoc IPayouts
    function withdrawCredit(uint256 pool, address account, address recipient) external nonReentrant {
        if (msg.sender != account && recipient != account) revert NotCreditor(account);
        uint256 amount = creditOf[pool][account];
        if (amount == 0) revert ZeroAmount();

        creditOf[pool][account] = 0;

        emit CreditWithdrawn(pool, account, recipient, amount);

        _transferExactly(IERC20(POOLS.tokenOf(pool)), recipient, amount);
    }

    /// @inheritdoc IPayouts
    function transferExactly(IERC20 token, address recipient, uint256 amount) external {
        if (msg.sender != address(this)) revert NotSelf(msg.sender);
        _transferExactly(token, recipient, amount);
    }

    /// @dev Pays tokens, or credits the account if the token does not move exactly the amount.
    // The credit is written after the transfer, which a failed call has undone. The guard of all callers keeps a token
    // from coming back in between.
    // slither-disable-next-line reentrancy-benign,reentrancy-events
    function _pay(uint256 pool, IERC20 token, address account, uint256 amount) internal {
        if (amount == 0) return;
        // A caller that gives too little gas for the transfer cannot turn a payment into a credit. Of less than
        // TRANSFER_GAS, 1/64 stays here, which does not pay for writing the credit.
        try this.transferExactly{gas: TRANSFER_GAS}(token, account, amount) {
            return;
        } catch {
            creditOf[pool][account] += amount;

            emit PaymentCredited(pool, account, amount);
        }
    }

    /// @dev Uses a permit of the caller. If the token refuses, the call goes on: somebody may have used the permit
    /// already, and then the tokens are approved. If they are not, taking them fails.
    function _permit(IERC20 token, uint256 amount, Permit calldata permit) internal {
        // Reverts if the token has no code, as taking tokens does.
        // solhint-disable no-empty-blocks
        try IERC20Permit(address(token)).permit(
            msg.sender, address(this), amount, permit.deadline, permit.v, permit.r, permit.s
        ) {} catch {}
        // solhint-enable no-empty-blocks
    }

    /// @dev Takes tokens from the caller, who must have approved them.
    function _receive(IERC20 token, uint256 amount) internal {
        uint256 held = token.balanceOf(address(this));
        token.safeTransferFrom(msg.sender, address(this), amount);
        if (token.balanceOf(address(this)) != held + amount) revert UnsupportedToken(address(token));
    }

    /// @dev Transfers tokens, and reverts unless exactly the amount left the contract.
    function _transferExactly(IERC20 token, address recipient, uint256 amount) private {
        uint256 held = token.balanceOf(address(this));
        bool isDone = token.trySafeTransfer(recipient, amount);
        if (!isDone || token.balanceOf(address(this)) + amount != held) revert UnsupportedToken(address(token));
    }
}
