// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPoolRegistry} from "../../contracts/interfaces/IPoolRegistry.sol";
import {World} from "./World.sol";

contract ReplaceValidatorTest is World {
    function test_ReplaceValidator_MovesTheOffice() public {
        vm.expectEmit();
        emit IPoolRegistry.ValidatorReplaced(pool, validators[1], stranger);
        vm.prank(operator);
        pools.replaceValidator(pool, validators[1], stranger);

        assertTrue(!pools.isValidator(pool, validators[1]));
        assertTrue(pools.isValidator(pool, stranger));
        address[] memory current = pools.getValidators(pool);
        assertEq(current.length, 3);
        assertEq(current[0], validators[0]);
        assertEq(current[1], stranger);
        assertEq(current[2], validators[2]);
    }

    function test_ReplaceValidator_RefusesOthersStrangersAndDuplicates() public {
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, pool, address(this)));
        pools.replaceValidator(pool, validators[0], stranger);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotValidator.selector, pool, stranger));
        vm.prank(operator);
        pools.replaceValidator(pool, stranger, trainer);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.DuplicateValidator.selector, validators[2]));
        vm.prank(operator);
        pools.replaceValidator(pool, validators[0], validators[2]);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.ZeroAddress.selector));
        vm.prank(operator);
        pools.replaceValidator(pool, validators[0], address(0));
    }
}
