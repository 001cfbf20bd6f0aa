// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPoolRegistry, PoolState, PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {World} from "./World.sol";

contract CreatePoolTest is World {
    function test_CreatePool_KeepsTermsAndOffices() public {
        vm.expectEmit();
        emit IPoolRegistry.PoolCreated(2, stranger, keccak256(bytes(PARAMS)), PARAMS);
        vm.prank(stranger);
        uint256 created = pools.createPool(makeTerms(), validators, PARAMS);

        assertEq(created, 2);
        assertEq(pools.poolCount(), 2);
        assertEq(pools.operatorOf(created), stranger);
        assertTrue(pools.stateOf(created) == PoolState.Created);
        PoolTerms memory terms = pools.getTerms(created);
        assertEq(keccak256(abi.encode(terms)), keccak256(abi.encode(makeTerms())));
        assertEq(pools.getValidators(created).length, 3);
        for (uint256 i = 0; i < 3; ++i) {
            assertTrue(pools.isValidator(created, validators[i]));
        }
        assertTrue(!pools.isValidator(created, stranger));
    }

    function test_CreatePool_RefusesOtherParams() public {
        vm.expectRevert(
            abi.encodeWithSelector(
                IPoolRegistry.ParamsMismatch.selector, keccak256(bytes(PARAMS)), keccak256("other")
            )
        );
        pools.createPool(makeTerms(), validators, "other");
    }

    function test_CreatePool_RefusesQuorumOfZeroOrAboveValidators() public {
        PoolTerms memory terms = makeTerms();
        terms.quorum = 0;
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.InvalidQuorum.selector, 0, 3));
        pools.createPool(terms, validators, PARAMS);
        terms.quorum = 4;
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.InvalidQuorum.selector, 4, 3));
        pools.createPool(terms, validators, PARAMS);
        terms.quorum = 3;
        assertEq(pools.createPool(terms, validators, PARAMS), 2);
    }

    function test_CreatePool_RefusesUnbondShorterThanOtherWindows(uint32 challenge, uint32 veto, uint32 unbond) public {
        PoolTerms memory terms = makeTerms();
        (terms.challengeWindow, terms.vetoWindow, terms.unbondWindow) = (challenge, veto, unbond);
        uint256 required = uint256(challenge) + veto;
        if (unbond < required) {
            vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.UnbondWindowTooShort.selector, unbond, required));
        }
        pools.createPool(terms, validators, PARAMS);
    }

    function test_CreatePool_RefusesZeroAddresses() public {
        bytes memory reason = abi.encodeWithSelector(IPoolRegistry.ZeroAddress.selector);
        PoolTerms memory terms = makeTerms();
        terms.trainer = address(0);
        vm.expectRevert(reason);
        pools.createPool(terms, validators, PARAMS);
        terms = makeTerms();
        terms.arbiter = address(0);
        vm.expectRevert(reason);
        pools.createPool(terms, validators, PARAMS);
        terms = makeTerms();
        terms.token = address(0);
        vm.expectRevert(reason);
        pools.createPool(terms, validators, PARAMS);
        validators[1] = address(0);
        vm.expectRevert(reason);
        pools.createPool(makeTerms(), validators, PARAMS);
    }

    function test_CreatePool_RefusesDuplicateValidators() public {
        validators[2] = validators[0];
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.DuplicateValidator.selector, validators[0]));
        pools.createPool(makeTerms(), validators, PARAMS);
    }
}
