// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {StakeManager} from "../../contracts/StakeManager.sol";
import {PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {BondKind, Hold} from "../../contracts/interfaces/IStakeManager.sol";
import {Setting} from "./Setting.sol";

/// Properties of StakeManager. This contract takes the places of the ledger and of the court, so that the properties
/// hold for every ledger and court.
contract StakeProofs is Setting {
    function deployStakes() internal override {
        stakes = new StakeManager(pools, address(this), address(this));
    }

    /// An omission burns of the operator's bond as much as it pays, and takes nothing else.
    function check_burned_is_at_least_what_was_paid(uint96 bonded, uint96 due) external {
        vm.assume(bonded > 0);
        bond(OPERATOR, BondKind.OPERATOR, bonded);
        uint256 paid = stakes.payFromOperator(pool, ALICE, due);
        assert(paid <= due);
        assert(token.balanceOf(ALICE) == paid);
        assert(token.balanceOf(stakes.BURN()) >= paid);
        assert(stakes.backingOf(pool, BondKind.OPERATOR, OPERATOR) == bonded - 2 * paid);
    }

    /// Two cases never lock more than what the contributor has, unbonding stake included.
    function check_locks_never_exceed_stake(uint96 bonded, uint96 leaving, bool isHeavy, bool isSecondHeavy) external {
        vm.assume(bonded > 0 && leaving > 0 && leaving <= bonded);
        bond(ALICE, BondKind.CONTRIBUTOR, bonded);
        unbond(ALICE, leaving);
        stakes.lock(pool, ALICE, isHeavy);
        assert(stakes.lockedOf(pool, ALICE) <= bonded);
        stakes.lock(pool, ALICE, isSecondHeavy);
        assert(stakes.lockedOf(pool, ALICE) <= bonded);
    }

    /// A case that is released, which is what a veto does, leaves what a later case may take as if it had never been.
    /// The cap of this pool is a single full case, so that a case that still counts would show.
    function check_veto_leaves_later_slashes_unchanged(uint96 bonded, uint16 wait, bool isHeavy, bool isLaterHeavy)
        external
    {
        vm.assume(bonded > 0);
        PoolTerms memory terms = makeTerms(SLASH);
        terms.maxSlashes = 1;
        pool = makePool(terms);
        bond(ALICE, BondKind.CONTRIBUTOR, bonded);
        bond(BOB, BondKind.CONTRIBUTOR, bonded);
        Hold memory held = stakes.lock(pool, ALICE, isHeavy);
        vm.warp(START + wait);
        stakes.release(pool, ALICE, held);
        (bool isLocked, uint256 amount) = tryLock(ALICE, isLaterHeavy);
        (bool isOthersLocked, uint256 others) = tryLock(BOB, isLaterHeavy);
        assert(isLocked == isOthersLocked && amount == others);
    }

    /// In one span of the unbonding window, three cases lock at most `slashAmount` x `maxSlashes`.
    function check_cases_of_a_span_stay_under_the_cap(uint96 bonded, bool isHeavy, bool isSecond, bool isThird) external {
        vm.assume(bonded > 0);
        bond(ALICE, BondKind.CONTRIBUTOR, bonded);
        tryLock(ALICE, isHeavy);
        tryLock(ALICE, isSecond);
        tryLock(ALICE, isThird);
        assert(stakes.lockedOf(pool, ALICE) <= uint256(SLASH) * 2);
    }

    /// Stake on its way out can be locked like stake that stays, however long it has been leaving.
    function check_unbonding_stake_stays_slashable(uint96 bonded, uint96 leaving, uint16 wait) external {
        vm.assume(bonded > 0 && leaving > 0 && leaving <= bonded);
        bond(ALICE, BondKind.CONTRIBUTOR, bonded);
        bond(BOB, BondKind.CONTRIBUTOR, bonded);
        unbond(ALICE, leaving);
        vm.warp(START + wait);
        (bool isLocked, uint96 amount) = tryLock(ALICE, true);
        (bool isOthersLocked, uint96 others) = tryLock(BOB, true);
        assert(isLocked == isOthersLocked && amount == others);
    }

    /// A slash burns exactly what its case locked. Unbondings, over which a slash loops, are left to the invariants.
    function check_slash_burns_what_is_locked(uint96 bonded, bool isHeavy) external {
        vm.assume(bonded > 0);
        bond(ALICE, BondKind.CONTRIBUTOR, bonded);
        uint96 amount = stakes.lock(pool, ALICE, isHeavy).amount;
        stakes.slash(pool, ALICE, amount);
        assert(stakes.lockedOf(pool, ALICE) == 0);
        assert(stakes.backingOf(pool, BondKind.CONTRIBUTOR, ALICE) == bonded - amount);
        assert(token.balanceOf(stakes.BURN()) == amount);
    }

    /// No stake leaves before the unbonding window has passed.
    function check_stake_leaves_only_after_unbonding(uint96 bonded, uint96 leaving, uint16 wait) external {
        vm.assume(bonded > 0 && leaving > 0 && leaving <= bonded);
        bond(ALICE, BondKind.CONTRIBUTOR, bonded);
        unbond(ALICE, leaving);
        vm.warp(START + wait);
        bool isPaid = tryWithdraw(ALICE, BondKind.CONTRIBUTOR);
        assert(isPaid == (wait >= UNBOND));
    }

    /// A contributor cannot withdraw while a case locks any of its stake.
    function check_locked_stake_never_leaves(uint96 bonded, uint96 leaving, uint16 wait) external {
        vm.assume(bonded > 0 && leaving > 0 && leaving <= bonded);
        bond(ALICE, BondKind.CONTRIBUTOR, bonded);
        unbond(ALICE, leaving);
        stakes.lock(pool, ALICE, true);
        vm.warp(START + wait);
        assert(!tryWithdraw(ALICE, BondKind.CONTRIBUTOR));
    }

    /// What was bonded is bonded, leaving or paid back after any two unbondings and a withdrawal at any time.
    function check_withdrawals_conserve_stake(uint96 bonded, uint96 first, uint96 second, uint16 between, uint16 wait)
        external
    {
        vm.assume(first > 0 && second > 0 && uint256(first) + second <= bonded);
        bond(ALICE, BondKind.CONTRIBUTOR, bonded);
        unbond(ALICE, first);
        vm.warp(START + between);
        unbond(ALICE, second);
        vm.warp(START + uint256(between) + wait);
        tryWithdraw(ALICE, BondKind.CONTRIBUTOR);
        uint256 kept = stakes.backingOf(pool, BondKind.CONTRIBUTOR, ALICE);
        assert(token.balanceOf(ALICE) + kept == bonded);
        assert(token.balanceOf(address(stakes)) == kept);
    }

    /// The operator's bond, unbonded or not, stays until the ended pool is closed.
    function check_operators_bond_stays_until_closing(uint96 bonded, bool isEnded, uint32 wait) external {
        vm.assume(bonded > 0);
        bond(OPERATOR, BondKind.OPERATOR, bonded);
        if (isEnded) endPool();
        vm.warp(START + uint256(wait));
        bool isPaid = tryWithdraw(OPERATOR, BondKind.OPERATOR);
        assert(isPaid == (isEnded && wait >= UNBOND + 4 * (CHALLENGE + VETO)));
    }

    function unbond(address account, uint256 amount) private {
        vm.prank(account);
        stakes.unbond(pool, BondKind.CONTRIBUTOR, amount);
    }

    function tryLock(address account, bool isHeavy) private returns (bool isLocked, uint96 amount) {
        try stakes.lock(pool, account, isHeavy) returns (Hold memory held) {
            return (true, held.amount);
        } catch {}
    }

    function tryWithdraw(address account, BondKind kind) private returns (bool isPaid) {
        vm.prank(account);
        try stakes.withdraw(pool, kind) {
            return true;
        } catch {}
    }
}
