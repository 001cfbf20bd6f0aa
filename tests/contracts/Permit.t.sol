// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IERC20Errors} from "@openzeppelin/contracts/interfaces/draft-IERC6093.sol";
import {IPayouts, Permit} from "../../contracts/interfaces/IPayouts.sol";
import {BondKind, IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {PayoutsFixture} from "./PayoutsFixture.sol";

/// Tests of StakeManager.stakeWithPermit and EpochLedger.fundPoolWithPermit.
contract PermitTest is PayoutsFixture {
    bytes32 internal constant TYPEHASH =
        keccak256("Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)");

    function makePermit(address spender, uint256 amount, uint256 deadline) internal view returns (Permit memory) {
        bytes32 message =
            keccak256(abi.encode(TYPEHASH, stranger, spender, amount, token.nonces(stranger), deadline));
        bytes32 digest = keccak256(abi.encodePacked(hex"1901", token.DOMAIN_SEPARATOR(), message));
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(STRANGER_KEY, digest);
        return Permit(deadline, v, r, s);
    }

    function stake(uint256 amount, Permit memory permit) internal {
        vm.prank(stranger);
        stakes.stakeWithPermit(pool, BondKind.VALIDATOR, amount, permit);
    }

    function missing(uint256 allowance, uint256 amount) internal view returns (bytes memory) {
        bytes4 selector = IERC20Errors.ERC20InsufficientAllowance.selector;
        return abi.encodeWithSelector(selector, address(stakes), allowance, amount);
    }

    function test_WhenTheOwnerPermits_ItStakesWithoutAnApproval() public {
        token.mint(stranger, 7);
        Permit memory permit = makePermit(address(stakes), 7, START);
        vm.expectEmit();
        emit IStakeManager.Staked(pool, stranger, BondKind.VALIDATOR, 7);
        stake(7, permit);
        assertEq(stakes.stakeOf(pool, BondKind.VALIDATOR, stranger), 7);
        assertEq(token.allowance(stranger, address(stakes)), 0);
    }

    function test_WhenTheOwnerPermits_ItFundsWithoutAnApproval() public {
        token.mint(stranger, 70);
        Permit memory permit = makePermit(address(ledger), 70, START);
        vm.prank(stranger);
        ledger.fundPoolWithPermit(pool, 70, permit);
        assertEq(ledger.escrowOf(pool), 1_000_070);
    }

    /// Somebody copies the permit from a pending transaction and uses it first. The tokens are approved then.
    function test_WhenThePermitWasUsedByAnother_ItStillStakes() public {
        token.mint(stranger, 7);
        Permit memory permit = makePermit(address(stakes), 7, START);
        token.permit(stranger, address(stakes), 7, permit.deadline, permit.v, permit.r, permit.s);
        stake(7, permit);
        assertEq(stakes.stakeOf(pool, BondKind.VALIDATOR, stranger), 7);
    }

    function test_WhenThePermitIsInvalid_NothingIsTaken() public {
        token.mint(stranger, 14);
        Permit memory permit = makePermit(address(stakes), 7, START);
        bytes memory reason = missing(0, 8);
        vm.expectRevert(reason);
        stake(8, permit);
        permit = makePermit(address(stakes), 7, START - 1);
        reason = missing(0, 7);
        vm.expectRevert(reason);
        stake(7, permit);
        permit = makePermit(address(ledger), 7, START);
        vm.expectRevert(reason);
        stake(7, permit);
    }

    /// A permit of another account moves nothing: the tokens come from the caller.
    function test_WhenAnotherSendsThePermit_NothingIsTaken() public {
        token.mint(stranger, 7);
        Permit memory permit = makePermit(address(stakes), 7, START);
        bytes memory reason = missing(0, 7);
        vm.expectRevert(reason);
        vm.prank(trainer);
        stakes.stakeWithPermit(pool, BondKind.VALIDATOR, 7, permit);
    }

    function test_WhenTheTokenHasNoPermits_AnApprovalIsEnough() public {
        stakes.stakeWithPermit(there, BondKind.CONTRIBUTOR, 100, Permit(START, 27, 0, 0));
        ledger.fundPoolWithPermit(there, 100, Permit(START, 27, 0, 0));
        assertEq(ledger.escrowOf(there), 100);
        assertEq(stakes.stakeOf(there, BondKind.CONTRIBUTOR, address(this)), 100);
    }

    function test_WhenThePoolIsNotOpen_ItReverts() public {
        Permit memory permit = makePermit(address(stakes), 7, START);
        vm.prank(operator);
        pools.endPool(pool);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.PoolNotOpen.selector, pool));
        stake(7, permit);
        vm.expectRevert();
        stakes.stakeWithPermit(99, BondKind.VALIDATOR, 7, permit);
        vm.expectRevert(abi.encodeWithSelector(IPayouts.ZeroAmount.selector));
        ledger.fundPoolWithPermit(there, 0, permit);
    }
}
