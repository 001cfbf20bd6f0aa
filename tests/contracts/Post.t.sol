// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochHeader} from "../../contracts/interfaces/ICoveyTypes.sol";
import {EpochRecord, IEpochLedger, Settlement} from "../../contracts/interfaces/IEpochLedger.sol";
import {Fixture} from "./Fixture.sol";

contract PostTest is Fixture {
    bytes32 internal constant WORK = keccak256("work");
    bytes32 internal constant REWARD = keccak256("reward");

    function refuse(bytes memory reason, EpochHeader memory header) internal {
        vm.expectRevert(reason);
        vm.prank(operator);
        ledger.post(header, none);
    }

    function test_WhenPosted_ItChainsHeadersAndReservesTheReward() public {
        EpochHeader memory first = makeHeader(WORK, REWARD, 100);
        assertEq(first.previousHash, bytes32(0));
        vm.expectEmit();
        emit IEpochLedger.EpochPosted(pool, 0, first, uint64(START + 20), 300, 300);
        postHeader(first);

        vm.warp(START + 4);
        EpochHeader memory second = makeHeader(WORK, REWARD, 11);
        assertEq(second.previousHash, ledger.hashHeader(first));
        EpochRecord memory record = EpochRecord(ledger.hashHeader(second), REWARD, 1, uint64(START + 24), 33, 333);
        vm.expectEmit();
        emit IEpochLedger.EpochPosted(pool, 1, second, uint64(START + 24), 33, 333);
        postHeader(second);

        assertEq(ledger.epochsOf(pool), 2);
        assertEq(ledger.headOf(pool), ledger.hashHeader(second));
        assertTrue(ledger.isPosted(pool, record));
        Settlement memory settled = ledger.getSettlement(pool);
        assertEq(settled.posted, 333);
        assertEq(settled.funded, 1_000_000);
        assertEq(settled.lastPostedAt, START + 4);
        assertEq(ledger.owedOf(pool), 333);
    }

    function test_WhenCallerIsNotSigner_ItReverts() public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.NotSigner.selector, pool, arbiter));
        vm.prank(arbiter);
        ledger.post(header, none);
    }

    function test_WhenThePoolWasNotStarted_ItReverts() public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        vm.prank(operator);
        header.pool = pools.createPool(makeTerms(), validators, PARAMS);
        refuse(abi.encodeWithSelector(IEpochLedger.PoolNotStarted.selector, header.pool), header);
    }

    function test_WhenTheEscrowCannotPay_ItReverts() public {
        post(REWARD, 333_333);
        vm.warp(START + 1);
        bytes4 selector = IEpochLedger.InsufficientEscrow.selector;
        refuse(abi.encodeWithSelector(selector, pool, 3, 1), makeHeader(WORK, REWARD, 1));
    }

    function test_WhenUnitsExceedTheCap_ItReverts(uint64 units) public {
        units = uint64(bound(units, 1_000_001, type(uint64).max));
        bytes4 selector = IEpochLedger.TooManyUnits.selector;
        refuse(abi.encodeWithSelector(selector, units, 1_000_000), makeHeader(WORK, REWARD, units));
    }

    function test_WhenTheHeaderDoesNotFollow_ItReverts() public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        header.epoch = 1;
        refuse(abi.encodeWithSelector(IEpochLedger.WrongEpoch.selector, 0, 1), header);
        header.epoch = 0;
        header.previousHash = WORK;
        refuse(abi.encodeWithSelector(IEpochLedger.WrongPreviousHash.selector, 0, WORK), header);
        header.previousHash = 0;
        postHeader(header);
        vm.warp(START + 1);
        refuse(abi.encodeWithSelector(IEpochLedger.WrongEpoch.selector, 1, 0), header);
    }

    function test_WhenTheLastEpochIsTooRecent_ItReverts() public {
        post(REWARD, 1);
        refuse(
            abi.encodeWithSelector(IEpochLedger.EpochTooEarly.selector, START + 1), makeHeader(WORK, REWARD, 1)
        );
        vm.warp(START + 1);
        post(REWARD, 1);
    }

    function test_WhenThePoolHasEnded_ItStillPosts() public {
        vm.prank(operator);
        pools.endPool(pool);
        post(REWARD, 5);
        assertEq(ledger.owedOf(pool), 15);
    }

    /// The pool closes at 100. A later epoch would be paid from rewards that others have not claimed yet.
    function test_WhenThePoolIsClosed_ItReverts() public {
        vm.prank(operator);
        pools.endPool(pool);
        vm.warp(START + 99);
        post(REWARD, 5);
        vm.warp(START + 100);
        EpochHeader memory header = makeHeader(WORK, REWARD, 0);
        refuse(abi.encodeWithSelector(IEpochLedger.PoolClosed.selector, START + 100), header);
        assertEq(ledger.epochsOf(pool), 1);
    }

    /// Epoch 256 overwrites epoch 0. All epochs between them are kept.
    function test_WhenManyEpochsFollow_ItKeepsTheNewest() public {
        EpochRecord memory first = post(REWARD, 1);
        vm.warp(START + 1);
        EpochRecord memory second = post(REWARD, 1);
        for (uint256 i = 2; i < 256; ++i) {
            vm.warp(START + i);
            post(REWARD, 1);
        }
        assertTrue(ledger.isPosted(pool, first));
        vm.warp(START + 256);
        EpochRecord memory last = post(REWARD, 1);
        assertTrue(!ledger.isPosted(pool, first));
        assertTrue(ledger.isPosted(pool, second));
        assertTrue(ledger.isPosted(pool, last));
        assertEq(last.epoch, 256);
        assertEq(last.cumulative, 257 * 3);
    }
}
