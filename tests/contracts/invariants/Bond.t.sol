// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Balance, BondKind} from "../../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "../Fixture.sol";
import {FuzzSelector} from "./Fuzzed.sol";

/// Calls StakeManager as an operator that moves its bond and ends its pool, and as a ledger that draws on the bond.
/// `broken` names a rule that was violated.
contract BondHandler is Fixture {
    string public broken;
    /// Tokens that the operator has bonded so far, and tokens that it has withdrawn.
    uint256 internal bonded = 1000;
    uint256 internal withdrawn;

    constructor() {
        super.setUp();
    }

    function stake(uint256 amount) external {
        if (!pools.isOpen(pool)) return;
        amount = bound(amount, 1, 500);
        bond(operator, BondKind.OPERATOR, amount);
        bonded += amount;
    }

    function leave(uint256 amount) external {
        amount = bound(amount, 1, 500);
        vm.prank(operator);
        try stakes.unbond(pool, BondKind.OPERATOR, amount) {} catch {}
    }

    function collect() external {
        uint256 held = token.balanceOf(operator);
        vm.prank(operator);
        try stakes.withdraw(pool, BondKind.OPERATOR) {
            if (block.timestamp < pools.closesAt(pool)) broken = "the bond left before the pool was closed";
            withdrawn += token.balanceOf(operator) - held;
        } catch {}
    }

    function pay(uint256 amount) external {
        uint256 before = totalOf();
        uint256 burned = token.balanceOf(stakes.BURN());
        vm.prank(address(ledger));
        uint256 paid = stakes.payFromOperator(pool, contributor, bound(amount, 0, 2000));
        burned = token.balanceOf(stakes.BURN()) - burned;
        if (before - totalOf() != paid + burned) broken = "the bond did not shrink by the paid and the burned amount";
        if (burned < paid) broken = "less was burned than paid";
    }

    function end() external {
        vm.prank(operator);
        try pools.endPool(pool) {} catch {}
    }

    function wait(uint256 time) external {
        vm.warp(block.timestamp + (time % 16 == 15 ? 120 : time % 21));
    }

    /// Rules that hold at any time.
    function check() external view {
        require(bytes(broken).length == 0, broken);
        uint256 paid = token.balanceOf(contributor);
        uint256 burned = token.balanceOf(stakes.BURN());
        require(burned >= paid, "more was paid than burned");
        require(totalOf() + paid + burned + withdrawn == bonded, "the bond is not conserved");
        bool isOpen = block.timestamp < pools.closesAt(pool);
        require(!isOpen || bonded - totalOf() <= 2 * burned, "an open pool's bond shrank without an equal burn");
    }

    function totalOf() internal view returns (uint256) {
        Balance memory balance = stakes.getBalance(pool, BondKind.OPERATOR, operator);
        return uint256(balance.bonded) + balance.leaving;
    }
}

/// Nobody ever receives more of an operator's bond than is burned, and the operator withdraws nothing before the pool
/// is closed.
contract BondInvariants {
    BondHandler internal handler;

    function setUp() public {
        handler = new BondHandler();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function targetSelectors() public view returns (FuzzSelector[] memory targets) {
        bytes4[] memory selectors = new bytes4[](6);
        selectors[0] = BondHandler.stake.selector;
        selectors[1] = BondHandler.leave.selector;
        selectors[2] = BondHandler.collect.selector;
        selectors[3] = BondHandler.pay.selector;
        selectors[4] = BondHandler.end.selector;
        selectors[5] = BondHandler.wait.selector;
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(handler), selectors);
    }

    function invariant_NobodyGetsMoreOfABondThanIsBurned() public view {
        handler.check();
    }
}
