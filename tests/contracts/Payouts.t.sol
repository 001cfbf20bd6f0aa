// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochRecord} from "../../contracts/interfaces/IEpochLedger.sol";
import {IPayouts} from "../../contracts/interfaces/IPayouts.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";
import {Fault, PayoutsFixture} from "./PayoutsFixture.sol";

/// A pool whose token misbehaves after the pool was funded: what it pays out.
contract PayoutsTest is PayoutsFixture {
    EpochRecord internal record;

    function setUp() public override {
        super.setUp();
        ledger.fundPool(there, 300);
        stakes.stake(there, BondKind.CONTRIBUTOR, 100);
        record = postThere(there, 10);
    }

    function withdrawCredit(address account, address recipient) internal {
        ledger.withdrawCredit(there, account, recipient);
    }

    function refuse(Fault fault) internal {
        bad.misbehave(fault);
        vm.expectEmit();
        emit IPayouts.PaymentCredited(there, contributor, 30);
        claimThere(there, record);
        assertEq(ledger.creditOf(there, contributor), 30);
        assertEq(ledger.claimedOf(there, contributor), 30);
        assertEq(ledger.escrowOf(there), 270);
        assertEq(bad.balanceOf(address(ledger)), 300);
        assertEq(bad.balanceOf(contributor), 0);
        if (fault == Fault.BurnGas) return;
        vm.expectRevert(abi.encodeWithSelector(IPayouts.UnsupportedToken.selector, address(bad)));
        withdrawCredit(contributor, contributor);
        bad.misbehave(Fault.None);
        vm.expectEmit();
        emit IPayouts.CreditWithdrawn(there, contributor, contributor, 30);
        withdrawCredit(contributor, contributor);
        assertEq(bad.balanceOf(contributor), 30);
        vm.expectRevert(abi.encodeWithSelector(IPayouts.ZeroAmount.selector));
        withdrawCredit(contributor, contributor);
    }

    function test_WhenTheTokenIsPaused_ItIsCredited() public {
        refuse(Fault.Pause);
    }

    function test_WhenTheTokenReturnsFalse_ItIsCredited() public {
        refuse(Fault.ReturnFalse);
    }

    function test_WhenTheTokenTaxesOnTop_ItIsCredited() public {
        refuse(Fault.TaxOnTop);
    }

    function test_WhenTheTokenMovesNothing_ItIsCredited() public {
        refuse(Fault.Lie);
    }

    function test_WhenTheTokenUsesAllGas_ItIsCredited() public {
        refuse(Fault.BurnGas);
    }

    /// The contract pays exactly what it owes. What the token takes from the recipient is the recipient's affair.
    function test_WhenTheTokenTaxesTheRecipient_ItIsPaid() public {
        bad.misbehave(Fault.Tax);
        claimThere(there, record);
        assertEq(ledger.creditOf(there, contributor), 0);
        assertEq(bad.balanceOf(contributor), 29);
        assertEq(bad.balanceOf(address(ledger)), 270);
    }

    function test_WhenTheTokenReturnsNothing_ItIsPaid() public {
        bad.misbehave(Fault.ReturnNothing);
        claimThere(there, record);
        assertEq(bad.balanceOf(contributor), 30);
    }

    /// The token takes 1 more than the payment, and pays it back as escrow of its own. Only the guard sees that.
    function test_WhenTheTokenReenters_ItIsCredited() public {
        bad.mint(address(bad), 10);
        bad.misbehave(Fault.TaxOnTop);
        bad.reenter(address(ledger), abi.encodeCall(ledger.fundPool, (there, 1)));
        claimThere(there, record);
        assertEq(ledger.creditOf(there, contributor), 30);
        assertEq(ledger.escrowOf(there), 270);

        bad.reenter(address(stakes), abi.encodeCall(stakes.stake, (there, BondKind.VALIDATOR, 1)));
        stakes.unbond(there, BondKind.CONTRIBUTOR, 100);
        vm.warp(block.timestamp + 20);
        stakes.withdraw(there, BondKind.CONTRIBUTOR);
        assertEq(stakes.creditOf(there, address(this)), 100);
    }

    /// The blocked account sends its credit elsewhere. Nobody else can.
    function test_WhenTheAccountIsBlocked_ItChoosesAnotherRecipient() public {
        bad.block_(contributor, true);
        claimThere(there, record);
        vm.expectRevert(abi.encodeWithSelector(IPayouts.NotCreditor.selector, contributor));
        withdrawCredit(contributor, stranger);
        vm.prank(contributor);
        withdrawCredit(contributor, stranger);
        assertEq(bad.balanceOf(stranger), 30);
    }

    /// Two pools share a token that begins to tax on top. Neither can pay with the escrow of the other.
    function test_WhenTwoPoolsShareTheToken_NeitherPaysForTheOther() public {
        uint256 other = makeBadPool();
        ledger.fundPool(other, 300);
        EpochRecord memory its = postThere(other, 100);
        bad.misbehave(Fault.TaxOnTop);
        claimThere(there, record);
        claimThere(other, its);
        assertEq(bad.balanceOf(address(ledger)), 600);
        bad.misbehave(Fault.None);
        withdrawCredit(contributor, contributor);
        ledger.withdrawCredit(other, contributor, contributor);
        assertEq(bad.balanceOf(contributor), 330);
        assertEq(bad.balanceOf(address(ledger)), ledger.escrowOf(there));
    }

    /// A paused token lets no proven cheat escape. The burn is repeated by anyone.
    function test_WhenABurnFails_TheStakeIsGoneAndAnyoneRepeatsIt() public {
        address burn = stakes.BURN();
        vm.prank(address(court));
        uint96 amount = stakes.lock(there, address(this), true).amount;
        bad.misbehave(Fault.Pause);
        vm.prank(address(court));
        stakes.slash(there, address(this), amount);
        assertEq(stakes.stakeOf(there, BondKind.CONTRIBUTOR, address(this)), 40);
        assertEq(stakes.creditOf(there, burn), 60);
        bad.misbehave(Fault.None);
        vm.prank(stranger);
        stakes.withdrawCredit(there, burn, burn);
        assertEq(bad.balanceOf(burn), 60);
        assertEq(bad.balanceOf(address(stakes)), 40);
    }

    function test_WhenTheOperatorIsBlocked_ARefundIsCredited() public {
        vm.prank(operator);
        pools.endPool(there);
        vm.warp(block.timestamp + 100);
        bad.block_(operator, true);
        vm.prank(operator);
        ledger.refundPool(there);
        assertEq(ledger.creditOf(there, operator), 270);
    }

    /// Whoever claims for another must not be able to turn the payment into a credit.
    function test_WhenTheCallHasTooLittleGas_ItReverts() public {
        bytes memory call =
            abi.encodeCall(ledger.claim, (there, record, contributor, uint256(30), new bytes32[](0)));
        for (uint256 gas_ = 40_000; gas_ < 400_000; gas_ += 1500) {
            (bool isDone,) = address(ledger).call{gas: gas_}(call);
            assertEq(ledger.creditOf(there, contributor), 0);
            if (isDone) break;
        }
        assertEq(bad.balanceOf(contributor), 30);
    }

    function test_WhenAnotherCallsTransferExactly_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IPayouts.NotSelf.selector, address(this)));
        ledger.transferExactly(bad, address(this), 1);
        vm.expectRevert(abi.encodeWithSelector(IPayouts.NotSelf.selector, address(this)));
        stakes.transferExactly(bad, address(this), 1);
    }
}
