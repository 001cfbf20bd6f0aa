// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";
import {IPoolRegistry, PoolState, PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {Fixture} from "./Fixture.sol";

contract CreatePoolTest is Fixture {
    function refuse(PoolTerms memory terms, bytes memory reason) internal {
        vm.expectRevert(reason);
        pools.createPool(terms, validators, PARAMS);
    }

    function test_WhenTermsAreValid_ItStoresTermsAndRoles() public {
        vm.expectEmit();
        emit IPoolRegistry.PoolCreated(2, stranger, keccak256(bytes(PARAMS)), PARAMS);
        vm.prank(stranger);
        uint256 created = pools.createPool(makeTerms(), validators, PARAMS);

        assertEq(created, 2);
        assertEq(pools.poolCount(), 2);
        assertEq(pools.operatorOf(created), stranger);
        assertEq(pools.arbiterOf(created), arbiter);
        assertEq(pools.tokenOf(created), address(token));
        assertTrue(pools.stateOf(created) == PoolState.Created);
        assertTrue(pools.isOpen(created));
        assertEq(keccak256(abi.encode(pools.getTerms(created))), keccak256(abi.encode(makeTerms())));
        assertEq(pools.getTerms(created).signer, operator);
        assertEq(pools.getValidators(created).length, 3);
        for (uint256 i = 0; i < 3; ++i) {
            assertTrue(pools.isValidator(created, validators[i]));
        }
        assertTrue(!pools.isValidator(created, stranger));
    }

    function test_WhenNoSignerIsNamed_ItIsTheOperator() public {
        PoolTerms memory terms = makeTerms();
        terms.signer = address(0);
        vm.prank(stranger);
        assertEq(pools.getTerms(pools.createPool(terms, validators, PARAMS)).signer, stranger);
    }

    function test_WhenParamsDoNotMatchTheirHash_ItReverts() public {
        bytes32 expected = keccak256(bytes(PARAMS));
        vm.expectRevert(
            abi.encodeWithSelector(IPoolRegistry.ParamsMismatch.selector, expected, keccak256("other"))
        );
        pools.createPool(makeTerms(), validators, "other");
    }

    function test_WhenQuorumIsZeroOrAboveValidators_ItReverts() public {
        PoolTerms memory terms = makeTerms();
        terms.quorum = 0;
        refuse(terms, abi.encodeWithSelector(IPoolRegistry.InvalidQuorum.selector, 0, 3));
        terms.quorum = 4;
        refuse(terms, abi.encodeWithSelector(IPoolRegistry.InvalidQuorum.selector, 4, 3));
        terms.quorum = 3;
        assertEq(pools.createPool(terms, validators, PARAMS), 2);
    }

    function test_WhenThereAreTooManyValidators_ItReverts() public {
        address[] memory many = new address[](33);
        for (uint256 i = 0; i < 33; ++i) {
            many[i] = address(uint160(1000 + i));
        }
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.InvalidQuorum.selector, 2, 33));
        pools.createPool(makeTerms(), many, PARAMS);
    }

    function test_WhenTheUnbondWindowIsShorterThanTheOthers_ItReverts(
        uint256 challenge,
        uint256 veto,
        uint256 unbonding
    ) public {
        PoolTerms memory terms = makeTerms();
        terms.challengeWindow = uint24(bound(challenge, 1, 30 days));
        terms.vetoWindow = uint24(bound(veto, 1, 30 days));
        terms.unbondWindow = uint24(bound(unbonding, 1, 180 days));
        terms.epochLength = terms.challengeWindow / 2;
        uint256 shortest = (4 * (uint256(terms.challengeWindow) + terms.vetoWindow) + 255) / 256;
        uint256 required = uint256(terms.challengeWindow) + terms.vetoWindow;
        if (terms.unbondWindow < required) {
            vm.expectRevert(
                abi.encodeWithSelector(IPoolRegistry.UnbondWindowTooShort.selector, terms.unbondWindow, required)
            );
        } else if (terms.epochLength < shortest) {
            bytes4 selector = IPoolRegistry.InvalidEpochLength.selector;
            vm.expectRevert(abi.encodeWithSelector(selector, terms.epochLength, shortest));
        }
        pools.createPool(terms, validators, PARAMS);
    }

    function test_WhenAWindowIsZeroOrTooLong_ItReverts() public {
        PoolTerms memory terms = makeTerms();
        terms.challengeWindow = 0;
        refuse(terms, abi.encodeWithSelector(IPoolRegistry.InvalidWindow.selector, 0));
        terms = makeTerms();
        terms.vetoWindow = 0;
        refuse(terms, abi.encodeWithSelector(IPoolRegistry.InvalidWindow.selector, 0));
        terms = makeTerms();
        terms.unbondWindow = 0;
        refuse(terms, abi.encodeWithSelector(IPoolRegistry.InvalidWindow.selector, 0));
        terms = makeTerms();
        terms.challengeWindow = 30 days + 1;
        refuse(terms, abi.encodeWithSelector(IPoolRegistry.InvalidWindow.selector, 30 days + 1));
        terms = makeTerms();
        terms.vetoWindow = 30 days + 1;
        refuse(terms, abi.encodeWithSelector(IPoolRegistry.InvalidWindow.selector, 30 days + 1));
        terms = makeTerms();
        terms.unbondWindow = 180 days + 1;
        refuse(terms, abi.encodeWithSelector(IPoolRegistry.InvalidWindow.selector, 180 days + 1));
    }

    /// 256 epochs must last at least 4 x (challenge + veto) seconds: 4 x 3,201 = 12,804 = 50 x 256 + 4, so 51 is the
    /// shortest length. The longest is half of the challenge window, 1,500.
    function test_WhenTheEpochLengthIsOutOfRange_ItReverts() public {
        PoolTerms memory terms = makeTerms();
        (terms.challengeWindow, terms.vetoWindow, terms.unbondWindow) = (3000, 201, 4000);
        terms.epochLength = 50;
        refuse(terms, abi.encodeWithSelector(IPoolRegistry.InvalidEpochLength.selector, 50, 51));
        terms.epochLength = 1501;
        refuse(terms, abi.encodeWithSelector(IPoolRegistry.InvalidEpochLength.selector, 1501, 51));
        terms.epochLength = 1500;
        assertEq(pools.createPool(terms, validators, PARAMS), 2);
        terms.epochLength = 51;
        assertEq(pools.createPool(terms, validators, PARAMS), 3);
    }

    function test_WhenSlashTermsBreakAnInvariant_ItReverts() public {
        bytes memory reason = abi.encodeWithSelector(IPoolRegistry.InvalidSlash.selector);
        PoolTerms memory terms = makeTerms();
        terms.lightSlashBps = 10_001;
        refuse(terms, reason);
        terms = makeTerms();
        terms.slashAmount = 101;
        refuse(terms, reason);
        terms = makeTerms();
        terms.maxSlashes = 0;
        refuse(terms, reason);
        terms = makeTerms();
        (terms.slashAmount, terms.minStake, terms.maxSlashes) = (type(uint96).max / 2, type(uint96).max, 3);
        refuse(terms, reason);
        terms = makeTerms();
        terms.signerPenalty = 21;
        refuse(terms, reason);
        terms = makeTerms();
        terms.acceptPenalty = 21;
        refuse(terms, reason);
    }

    function test_WhenAnAddressIsZero_ItReverts() public {
        bytes memory reason = abi.encodeWithSelector(IPoolRegistry.ZeroAddress.selector);
        PoolTerms memory terms = makeTerms();
        terms.trainer = address(0);
        refuse(terms, reason);
        terms = makeTerms();
        terms.arbiter = address(0);
        refuse(terms, reason);
        terms = makeTerms();
        terms.token = address(0);
        refuse(terms, reason);
        validators[1] = address(0);
        refuse(makeTerms(), reason);
    }

    function test_WhenTheArbiterHoldsAnotherRole_ItReverts() public {
        bytes memory reason = abi.encodeWithSelector(IPoolRegistry.OfficeConflict.selector, arbiter);
        vm.prank(arbiter);
        refuse(makeTerms(), reason);
        PoolTerms memory terms = makeTerms();
        terms.signer = arbiter;
        refuse(terms, reason);
        validators[2] = arbiter;
        refuse(makeTerms(), reason);
    }

    function test_WhenAValidatorIsNamedTwice_ItReverts() public {
        validators[2] = validators[0];
        refuse(makeTerms(), abi.encodeWithSelector(IPoolRegistry.DuplicateValidator.selector, validators[0]));
    }

    function test_WhenPaused_ItReverts() public {
        vm.prank(admin);
        pools.pause();
        refuse(makeTerms(), abi.encodeWithSelector(Pausable.EnforcedPause.selector));
    }
}
