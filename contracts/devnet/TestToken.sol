// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";

/// The ERC-20 of devnets and tests: anybody may mint any amount, so it is worth nothing.
contract TestToken is ERC20("Covey Test Token", "CVT") {
    function mint(address to, uint256 amount) external {
        _mint(to, amount);
    }
}
