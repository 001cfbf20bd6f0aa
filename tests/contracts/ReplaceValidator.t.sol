// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt} from "../../contracts/interfaces/ICoveyTypes.sol";
import {IPoolRegistry} from "../../contracts/interfaces/IPoolRegistry.sol";
import {Finding} from "../../contracts/interfaces/ISlashingCourt.sol";
import {IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

contract ReplaceValidatorTest is Fixture {
    function replace(address previous, address current) internal {
        vm.prank(operator);
        pools.replaceValidator(pool, previous, current);
    }

    function test_WhenReplaced_ThePreviousOneStopsAtOnceAndTheNewOneStartsLater() public {
        vm.expectEmit();
        emit IPoolRegistry.ValidatorReplaced(pool, validators[1], stranger, START + 40);
        replace(validators[1], stranger);

        assertTrue(!pools.isValidator(pool, validators[1]));
        assertTrue(!pools.isValidator(pool, stranger));
        vm.warp(START + 39);
        assertTrue(!pools.isValidator(pool, stranger));
        vm.warp(START + 40);
        assertTrue(pools.isValidator(pool, stranger));
        address[] memory current = pools.getValidators(pool);
        assertEq(current.length, 3);
        assertEq(current[0], validators[0]);
        assertEq(current[1], stranger);
        assertEq(current[2], validators[2]);
    }

    function test_WhenReplaced_ItsVerdictsOpenNoCase() public {
        Receipt memory receipt = makeReceipt(1, keccak256("file"));
        Finding[] memory findings = makeFindings(receipt, 2);
        bytes memory signature = signReceipt(receipt);
        replace(validators[0], stranger);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NotValidator.selector, pool, validators[0]));
        court.propose(receipt, signature, 7, findings);
    }

    /// The contributor notices the replacement after 19 s, almost a whole window, and still withdraws before 40.
    function test_WhenAContributorLeavesInTime_NoStakeIsLeftForTheNewOne() public {
        replace(validators[1], stranger);
        vm.warp(START + 19);
        unbond(100);
        vm.warp(START + 39);
        assertTrue(!pools.isValidator(pool, stranger));
        withdraw();
        assertEq(token.balanceOf(contributor), 100);
    }

    function test_WhenReplacedAndNamedAgain_ItWaitsLikeANewOne() public {
        replace(validators[1], stranger);
        replace(stranger, validators[1]);
        assertTrue(!pools.isValidator(pool, validators[1]));
        vm.warp(START + 40);
        assertTrue(pools.isValidator(pool, validators[1]));
        assertTrue(!pools.isValidator(pool, stranger));
    }

    function test_WhenCallerIsNotOperator_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, pool, arbiter));
        vm.prank(arbiter);
        pools.replaceValidator(pool, validators[0], stranger);
    }

    function test_WhenNamesAreWrong_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotValidator.selector, pool, stranger));
        replace(stranger, trainer);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.DuplicateValidator.selector, validators[2]));
        replace(validators[0], validators[2]);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.ZeroAddress.selector));
        replace(validators[0], address(0));
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.OfficeConflict.selector, arbiter));
        replace(validators[0], arbiter);
    }
}
