// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {IPayouts} from "../../contracts/interfaces/IPayouts.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";
import {Fault, Paused, PayoutsFixture} from "./PayoutsFixture.sol";

/// A pool whose token misbehaves after the pool was created: what it takes in.
contract BadTokensTest is PayoutsFixture {
    function refuse(bytes memory reason) internal {
        vm.expectRevert(reason);
        ledger.fundPool(there, 100);
        vm.expectRevert(reason);
        stakes.stake(there, BondKind.CONTRIBUTOR, 100);
    }

    function test_WhenLessArrives_NothingIsTaken() public {
        bad.misbehave(Fault.Tax);
        refuse(abi.encodeWithSelector(IPayouts.UnsupportedToken.selector, address(bad)));
    }

    function test_WhenTheTokenReturnsFalse_NothingIsTaken() public {
        bad.misbehave(Fault.ReturnFalse);
        refuse(abi.encodeWithSelector(SafeERC20.SafeERC20FailedOperation.selector, address(bad)));
    }

    function test_WhenTheTokenIsPaused_NothingIsTaken() public {
        bad.misbehave(Fault.Pause);
        refuse(abi.encodeWithSelector(Paused.selector));
    }

    /// A token like Tether's: it has 6 decimals, and its functions return nothing.
    function test_WhenTheTokenReturnsNothing_ItWorks() public {
        bad.misbehave(Fault.ReturnNothing);
        ledger.fundPool(there, 100);
        stakes.stake(there, BondKind.CONTRIBUTOR, 100);
        assertEq(ledger.escrowOf(there), 100);
        stakes.unbond(there, BondKind.CONTRIBUTOR, 100);
        vm.warp(START + 20);
        stakes.withdraw(there, BondKind.CONTRIBUTOR);
        assertEq(bad.balanceOf(address(this)), 900);
    }

    function test_WhenTheTokenReentersAPayment_ItReverts() public {
        bytes memory reason =
            abi.encodeWithSelector(ReentrancyGuardTransient.ReentrancyGuardReentrantCall.selector);
        bad.reenter(address(stakes), abi.encodeCall(stakes.stake, (there, BondKind.CONTRIBUTOR, 1)));
        vm.expectRevert(reason);
        stakes.stake(there, BondKind.CONTRIBUTOR, 100);
        bad.reenter(address(ledger), abi.encodeCall(ledger.fundPool, (there, 1)));
        vm.expectRevert(reason);
        ledger.fundPool(there, 100);
    }

    /// A bad token of one pool does not affect the stake of another.
    function test_WhenOnePoolsTokenIsBad_OtherPoolsStillWork() public {
        stakes.stake(there, BondKind.CONTRIBUTOR, 100);
        bad.misbehave(Fault.Pause);
        unbond(100);
        vm.warp(START + 20);
        withdraw();
        assertEq(token.balanceOf(contributor), 100);
    }
}
