// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPoolRegistry, PoolState} from "../../contracts/interfaces/IPoolRegistry.sol";
import {World} from "./World.sol";

/// startPool, endPool, refundPool, and the verbs that are the ledger's alone.
contract PoolLifeTest is World {
    function test_StartPool_OnceByOperatorOnly() public {
        vm.prank(operator);
        uint256 created = pools.createPool(makeTerms(), validators, PARAMS);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, created, address(this)));
        pools.startPool(created);

        vm.expectEmit();
        emit IPoolRegistry.PoolStarted(created);
        vm.prank(operator);
        pools.startPool(created);
        assertTrue(pools.stateOf(created) == PoolState.Active);

        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.WrongState.selector, created, PoolState.Active));
        vm.prank(operator);
        pools.startPool(created);
    }

    function test_EndPool_OnceByOperatorOnly() public {
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, pool, address(this)));
        pools.endPool(pool);

        vm.expectEmit();
        emit IPoolRegistry.PoolEnded(pool);
        vm.prank(operator);
        pools.endPool(pool);
        assertTrue(pools.stateOf(pool) == PoolState.Ended);

        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.WrongState.selector, pool, PoolState.Ended));
        vm.prank(operator);
        pools.endPool(pool);
    }

    function test_RefundPool_AfterDelayReturnsOnlyWhatIsNotOwed() public {
        vm.prank(operator);
        ledger.post(pool, keccak256("work"), keccak256("reward"), 1, 1000, keccak256("data"));
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.WrongState.selector, pool, PoolState.Active));
        vm.prank(operator);
        pools.refundPool(pool);
        vm.prank(operator);
        pools.endPool(pool);

        vm.warp(START + 39);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.TooEarly.selector, START + 40));
        vm.prank(operator);
        pools.refundPool(pool);
        vm.warp(START + 40);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, pool, address(this)));
        pools.refundPool(pool);

        vm.expectEmit();
        emit IPoolRegistry.PoolRefunded(pool, operator, 997_000);
        vm.prank(operator);
        pools.refundPool(pool);
        assertEq(token.balanceOf(operator), 997_000);
        assertEq(pools.escrowOf(pool), 3000);
        assertEq(pools.owedOf(pool), 3000);

        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.ZeroAmount.selector));
        vm.prank(operator);
        pools.refundPool(pool);
    }

    function test_LedgerVerbs_RefuseEverybodyElse() public {
        vm.expectRevert();
        pools.reserve(pool, 1);
        vm.expectRevert();
        pools.unreserve(pool, 0);
        vm.expectRevert();
        vm.prank(operator);
        pools.payOut(pool, operator, 0);
    }

    function test_LedgerVerbs_NeverExceedEscrow() public {
        pools.grantRole(pools.LEDGER_ROLE(), address(this));
        vm.expectRevert(
            abi.encodeWithSelector(IPoolRegistry.InsufficientEscrow.selector, pool, 1_000_001, 1_000_000)
        );
        pools.reserve(pool, 1_000_001);
        pools.reserve(pool, 40);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.InsufficientEscrow.selector, pool, 41, 40));
        pools.payOut(pool, stranger, 41);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.InsufficientEscrow.selector, pool, 41, 40));
        pools.unreserve(pool, 41);
        pools.payOut(pool, stranger, 15);
        pools.unreserve(pool, 5);
        assertEq(token.balanceOf(stranger), 15);
        assertEq(pools.owedOf(pool), 20);
        assertEq(pools.escrowOf(pool), 999_985);
    }

    function test_Admin_GivenUpNamesNoLedgerAgain() public {
        pools.beginDefaultAdminTransfer(address(0));
        vm.warp(START + 1);
        pools.renounceRole(bytes32(0), address(this));
        bytes32 role = pools.LEDGER_ROLE();
        vm.expectRevert();
        pools.grantRole(role, address(this));
    }
}
