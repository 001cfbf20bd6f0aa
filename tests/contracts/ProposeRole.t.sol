// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPoolRegistry, Role} from "../../contracts/interfaces/IPoolRegistry.sol";
import {BondKind, IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {IEpochLedger} from "../../contracts/interfaces/IEpochLedger.sol";
import {EpochHeader} from "../../contracts/interfaces/ICoveyTypes.sol";
import {Fixture} from "./Fixture.sol";

contract ProposeRoleTest is Fixture {
    address internal next = address(0x1001);
    address internal other = address(0x1002);

    function propose(address caller, Role role, address account) internal {
        vm.prank(caller);
        pools.proposeRole(pool, role, account);
    }

    function refuse(bytes memory reason, address caller, Role role, address account) internal {
        vm.expectRevert(reason);
        propose(caller, role, account);
    }

    function holderOf(Role role) internal view returns (address account) {
        (account,,) = pools.getRole(pool, role);
    }

    function test_WhenTheWindowHasPassed_TheRoleIsTheOtherAccounts() public {
        for (uint256 i = 0; i < 4; ++i) {
            // The operator is replaced last, because it proposes all of them.
            Role role = Role(3 - i);
            uint256 delay = role == Role.Arbiter ? 40 : 20;
            address before = holderOf(role);
            address account = address(uint160(0x2000 + i));
            vm.expectEmit();
            emit IPoolRegistry.RoleProposed(pool, role, account, START + delay);
            propose(operator, role, account);
            (address present, address pending, uint256 from) = pools.getRole(pool, role);
            assertEq(present, before);
            assertEq(pending, account);
            assertEq(from, START + delay);
            vm.warp(START + delay - 1);
            assertEq(holderOf(role), before);
            vm.warp(START + delay);
            (present, pending, from) = pools.getRole(pool, role);
            assertEq(present, account);
            assertEq(pending, address(0));
            assertEq(from, 0);
            vm.warp(START);
        }
        vm.warp(START + 40);
        assertEq(pools.getTerms(pool).trainer, pools.trainerOf(pool));
        assertEq(pools.getTerms(pool).arbiter, pools.arbiterOf(pool));
        assertEq(pools.getTerms(pool).signer, address(0x2002));
        assertEq(pools.operatorOf(pool), address(0x2003));
    }

    function test_WhenAProposalIsPending_ItCanBeReplacedAndCancelled() public {
        propose(operator, Role.Trainer, next);
        vm.warp(START + 5);
        propose(operator, Role.Trainer, other);
        vm.warp(START + 24);
        assertEq(holderOf(Role.Trainer), trainer);
        vm.expectEmit();
        emit IPoolRegistry.RoleProposed(pool, Role.Trainer, trainer, 0);
        propose(operator, Role.Trainer, trainer);
        vm.warp(START + 100);
        assertEq(holderOf(Role.Trainer), trainer);
        refuse(abi.encodeWithSelector(IPoolRegistry.NothingToChange.selector), operator, Role.Trainer, trainer);
        propose(operator, Role.Trainer, next);
        vm.warp(START + 120);
        propose(operator, Role.Trainer, other);
        assertEq(holderOf(Role.Trainer), next);
        vm.warp(START + 140);
        assertEq(holderOf(Role.Trainer), other);
    }

    function test_WhenTheArbiterNamesItsSuccessor_ItWaitsTwoWindows() public {
        propose(arbiter, Role.Arbiter, next);
        vm.warp(START + 39);
        assertEq(pools.arbiterOf(pool), arbiter);
        vm.warp(START + 40);
        assertEq(pools.arbiterOf(pool), next);
        refuse(notOperator(arbiter), arbiter, Role.Arbiter, other);
    }

    /// Otherwise an arbiter that the operator no longer trusts could stay for ever.
    function test_WhenTheOperatorNamedAnotherArbiter_TheArbiterCannotPreventIt() public {
        propose(arbiter, Role.Arbiter, other);
        vm.warp(START + 30);
        propose(operator, Role.Arbiter, next);
        bytes memory pending = abi.encodeWithSelector(IPoolRegistry.ProposalPending.selector, pool);
        refuse(pending, arbiter, Role.Arbiter, other);
        refuse(pending, arbiter, Role.Arbiter, arbiter);
        vm.warp(START + 70);
        assertEq(pools.arbiterOf(pool), next);
    }

    function test_WhenCallerIsNotEntitled_ItReverts() public {
        refuse(notOperator(stranger), stranger, Role.Signer, stranger);
        refuse(notOperator(arbiter), arbiter, Role.Operator, next);
        refuse(notOperator(trainer), trainer, Role.Arbiter, next);
        propose(operator, Role.Operator, next);
        refuse(notOperator(next), next, Role.Trainer, next);
        vm.warp(START + 20);
        refuse(notOperator(operator), operator, Role.Trainer, next);
        propose(next, Role.Trainer, other);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, 99, operator));
        vm.prank(operator);
        pools.proposeRole(99, Role.Signer, next);
    }

    function test_WhenTheArbiterWouldJudgeItself_ItReverts() public {
        refuse(conflict(operator), operator, Role.Arbiter, operator);
        refuse(conflict(validators[1]), arbiter, Role.Arbiter, validators[1]);
        refuse(conflict(arbiter), operator, Role.Operator, arbiter);
        refuse(conflict(arbiter), operator, Role.Signer, arbiter);
        propose(operator, Role.Signer, other);
        refuse(conflict(other), arbiter, Role.Arbiter, other);
        propose(operator, Role.Arbiter, next);
        refuse(conflict(next), operator, Role.Signer, next);
        vm.expectRevert(conflict(next));
        vm.prank(operator);
        pools.replaceValidator(pool, validators[0], next);
        refuse(abi.encodeWithSelector(IPoolRegistry.ZeroAddress.selector), operator, Role.Signer, address(0));
    }

    function test_WhenTheOperatorIsReplaced_TheBondStaysThePools() public {
        propose(operator, Role.Operator, next);
        vm.warp(START + 20);
        assertEq(stakes.stakeOf(pool, BondKind.OPERATOR, next), 1000);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NotOperator.selector, pool, operator));
        vm.prank(operator);
        stakes.unbond(pool, BondKind.OPERATOR, 1000);
        bond(next, BondKind.OPERATOR, 5);
        vm.prank(next);
        pools.endPool(pool);
        vm.warp(START + 120);
        stakes.withdraw(pool, BondKind.OPERATOR);
        assertEq(token.balanceOf(next), 1005);
    }

    function test_WhenTheSignerIsReplaced_OnlyTheNewOnePosts() public {
        propose(operator, Role.Signer, next);
        vm.warp(START + 20);
        EpochHeader memory header = makeHeader(keccak256("work"), keccak256("reward"), 1);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.NotSigner.selector, pool, operator));
        vm.prank(operator);
        ledger.post(header, none);
        vm.prank(next);
        ledger.post(header, none);
        assertEq(pools.signerAt(pool, START + 19), operator);
        assertEq(pools.signerAt(pool, START + 20), next);
        assertEq(pools.signerAt(99, START), address(0));
    }

    function conflict(address account) private pure returns (bytes memory) {
        return abi.encodeWithSelector(IPoolRegistry.OfficeConflict.selector, account);
    }

    function notOperator(address account) private view returns (bytes memory) {
        return abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, pool, account);
    }
}
