// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IAccessControl} from "@openzeppelin/contracts/access/IAccessControl.sol";
import {IAccessControlDefaultAdminRules} from
    "@openzeppelin/contracts/access/extensions/IAccessControlDefaultAdminRules.sol";
import {EpochRecord} from "../../contracts/interfaces/IEpochLedger.sol";
import {INodeRegistry} from "../../contracts/interfaces/INodeRegistry.sol";
import {IPolicyRegistry} from "../../contracts/interfaces/IPolicyRegistry.sol";
import {BondKind, IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {Accusation} from "../../contracts/interfaces/ISlashingCourt.sol";
import {Fixture} from "./Fixture.sol";

/// Tests of PoolRegistry.pause and unpause, and of the transfer of the admin's role.
contract PauseTest is Fixture {
    function pause() internal {
        vm.prank(admin);
        pools.pause();
    }

    function test_WhenPaused_ItStopsNewWork() public {
        pause();
        assertTrue(!pools.isOpen(pool));
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.PoolNotOpen.selector, pool));
        vm.prank(contributor);
        stakes.stake(pool, BondKind.CONTRIBUTOR, 1);
        vm.expectRevert(abi.encodeWithSelector(IPolicyRegistry.PoolNotActive.selector, pool));
        vm.prank(trainer);
        policies.publish(pool, 0, keccak256("0"));
        bytes32 digest = nodes.digestRegistration(pool, contributor, vm.addr(0x1D), 0, START);
        bytes memory mine = sign(CONTRIBUTOR_KEY, digest);
        bytes memory its = sign(0x1D, digest);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.PoolNotOpen.selector, pool));
        nodes.registerNode(pool, contributor, vm.addr(0x1D), START, mine, its);
    }

    /// An honest operator must be able to pay for what it promised, and a validator to bond what a penalty took.
    function test_WhenPaused_FundingAndBondsGoOn() public {
        pause();
        give(operator, pool, 5);
        bond(operator, BondKind.OPERATOR, 7);
        bond(validators[0], BondKind.VALIDATOR, 9);
        assertEq(ledger.escrowOf(pool), 1_000_005);
        assertEq(stakes.stakeOf(pool, BondKind.OPERATOR, operator), 1007);
        assertEq(stakes.stakeOf(pool, BondKind.VALIDATOR, validators[0]), 29);
    }

    function test_WhenPaused_ExitsClaimsAndCasesGoOn() public {
        bytes32 leaf = ledger.hashRewardLeaf(block.chainid, address(ledger), pool, contributor, 300);
        Accusation memory accused = openCase(1);
        unbond(50);
        pause();
        EpochRecord memory record = post(leaf, 100);
        vm.prank(arbiter);
        court.veto(accused);
        Accusation memory executed = openCase(2);
        vm.warp(START + 20);
        court.execute(executed);
        ledger.claim(pool, record, contributor, 300, new bytes32[](0));
        // 60 of 100 are burned: the 50 that are bonded, then 10 of those that are unbonding.
        withdraw();
        assertEq(token.balanceOf(contributor), 340);
        vm.prank(contributor);
        nodes.removeNode(pool, node);
        vm.prank(operator);
        pools.endPool(pool);
        vm.warp(START + 120);
        vm.prank(operator);
        ledger.refundPool(pool);
        assertEq(token.balanceOf(operator), 999_700);
    }

    function test_WhenUnpaused_NewWorkGoesOn() public {
        pause();
        vm.prank(admin);
        pools.unpause();
        bond(contributor, BondKind.CONTRIBUTOR, 1);
        assertEq(stakeOf(contributor), 101);
    }

    function test_WhenCallerIsNotPauser_ItReverts() public {
        bytes32 role = pools.PAUSER_ROLE();
        bytes memory reason =
            abi.encodeWithSelector(IAccessControl.AccessControlUnauthorizedAccount.selector, operator, role);
        vm.expectRevert(reason);
        vm.prank(operator);
        pools.pause();
        pause();
        vm.expectRevert(reason);
        vm.prank(operator);
        pools.unpause();
    }

    function test_WhenTheAdminChanges_ItWaitsTwoDays() public {
        assertEq(pools.defaultAdminDelay(), 2 days);
        vm.prank(admin);
        pools.beginDefaultAdminTransfer(stranger);
        uint48 schedule = uint48(START + 2 days);
        vm.warp(schedule);
        vm.expectRevert(
            abi.encodeWithSelector(
                IAccessControlDefaultAdminRules.AccessControlEnforcedDefaultAdminDelay.selector, schedule
            )
        );
        vm.prank(stranger);
        pools.acceptDefaultAdminTransfer();
        vm.warp(schedule + 1);
        vm.prank(stranger);
        pools.acceptDefaultAdminTransfer();
        assertEq(pools.defaultAdmin(), stranger);
    }
}
