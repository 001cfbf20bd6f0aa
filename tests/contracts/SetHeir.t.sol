// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPoolRegistry} from "../../contracts/interfaces/IPoolRegistry.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

contract SetHeirTest is Fixture {
    address internal heir = address(0x1001);

    function setHeir(address account) internal {
        vm.prank(operator);
        pools.setHeir(pool, account);
    }

    /// Nobody has the operator's key any more. The arbiter ends the pool, and a stranger sends what is left.
    function test_WhenTheOperatorsKeyIsLost_EscrowAndBondReachTheHeir() public {
        setHeir(heir);
        vm.prank(arbiter);
        pools.endPool(pool);
        vm.warp(START + 100);
        vm.prank(stranger);
        ledger.refundPool(pool);
        vm.prank(stranger);
        stakes.withdraw(pool, BondKind.OPERATOR);
        assertEq(token.balanceOf(heir), 1_001_000);
        assertEq(token.balanceOf(operator), 0);
        assertEq(token.balanceOf(stranger), 0);
    }

    function test_WhenSet_ItIsInTheTermsAndCanBeTakenBack() public {
        assertEq(pools.beneficiaryOf(pool), operator);
        vm.expectEmit();
        emit IPoolRegistry.HeirSet(pool, heir);
        setHeir(heir);
        assertEq(pools.getTerms(pool).heir, heir);
        assertEq(pools.beneficiaryOf(pool), heir);
        setHeir(address(0));
        assertEq(pools.beneficiaryOf(pool), operator);
        assertEq(pools.beneficiaryOf(99), address(0));
    }

    function test_WhenCallerIsNotOperator_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, pool, arbiter));
        vm.prank(arbiter);
        pools.setHeir(pool, arbiter);
    }
}
