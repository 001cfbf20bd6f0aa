// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

struct FuzzSelector {
    address addr;
    bytes4[] selectors;
}
