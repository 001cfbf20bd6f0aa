// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";

/// @title TestToken
/// @notice ERC-20 token with permits (EIP-2612) of devnets and tests. Anyone can mint any amount, so it has no value.
contract TestToken is ERC20("Covey Test Token", "CVT"), ERC20Permit("Covey Test Token") {
    /// @notice Mints tokens to an account.
    /// @param to Account that receives the tokens.
    /// @param amount Amount in the token's smallest unit.
    function mint(address to, uint256 amount) external {
        _mint(to, amount);
    }
}
