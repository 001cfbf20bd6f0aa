// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

/// @notice An owner's EIP-2612 signature that lets the contract take the amount of the call.
/// @param deadline Unix time in seconds until which it can be used.
/// @param v Recovery id of the signature.
/// @param r First half of the signature.
/// @param s Second half of the signature.
struct Permit {
    uint256 deadline;
    uint8 v;
    bytes32 r;
    bytes32 s;
}

/// @title IPayouts
/// @notice How EpochLedger and StakeManager take and pay tokens, so that no token stops or robs other accounts.
/// @dev Payments in: the contract's balance must rise by exactly the amount. Otherwise the call reverts. A permit that
/// the token refuses does not stop a call, because anyone can use the permit first.
///
/// Payments out: a transfer counts only if the contract's balance falls by exactly the amount. A transfer that the
/// token refuses, blocks, or takes more or less for is undone, and the amount is credited to the account instead. The
/// call goes on. So a paused token or a blocked account stops no slash, resolution or claim of anybody else, and one
/// pool never pays with the tokens of another. What a token takes from the recipient is the recipient's affair.
///
/// Credits: an account withdraws its credit to any recipient. Anyone can send it to the account itself, which is also
/// how a burn that failed is repeated.
interface IPayouts {
    /// @notice The token refused a payment, so the account was credited.
    /// @param pool Id of the pool.
    /// @param account Account that can withdraw the credit.
    /// @param amount Amount in the token's smallest unit.
    event PaymentCredited(uint256 indexed pool, address indexed account, uint256 amount);

    /// @notice A credit was paid.
    /// @param pool Id of the pool.
    /// @param account Account whose credit was paid.
    /// @param recipient Account that received the tokens.
    /// @param amount Amount in the token's smallest unit.
    event CreditWithdrawn(uint256 indexed pool, address indexed account, address indexed recipient, uint256 amount);

    /// @notice The token moved another amount than it was asked to, or refused.
    /// @param token The pool's token.
    error UnsupportedToken(address token);

    /// @notice The amount to move is zero.
    error ZeroAmount();

    /// @notice Only the contract itself can call this function.
    /// @param account The caller.
    error NotSelf(address account);

    /// @notice Only the account itself can choose another recipient.
    /// @param account Account that owns the credit.
    error NotCreditor(address account);

    /// @notice Pays the whole credit of an account.
    /// @dev The account can name any recipient. Anyone else can only have it sent to the account itself. Reverts if the
    /// token still refuses.
    /// @param pool Id of the pool.
    /// @param account Account that owns the credit.
    /// @param recipient Account that receives the tokens.
    function withdrawCredit(uint256 pool, address account, address recipient) external;

    /// @notice Transfers tokens, and reverts unless exactly the amount left the contract.
    /// @dev The contract calls this on itself, so that it can undo a transfer.
    /// @param token The pool's token.
    /// @param recipient Account that receives the tokens.
    /// @param amount Amount in the token's smallest unit.
    function transferExactly(IERC20 token, address recipient, uint256 amount) external;

    /// @notice Returns what an account can withdraw because the token refused a payment.
    /// @param pool Id of the pool.
    /// @param account Account that owns the credit.
    /// @return Amount in the token's smallest unit.
    function creditOf(uint256 pool, address account) external view returns (uint256);
}
