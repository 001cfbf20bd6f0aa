// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochRecord, Settlement} from "../../contracts/interfaces/IEpochLedger.sol";
import {LedgerSetting} from "./LedgerSetting.sol";

/// Properties of EpochLedger: what epochs reserve, what claims take, and what a closed pool returns.
contract LedgerProofs is LedgerSetting {
    /// An epoch reserves what its units cost, and never more than the escrow holds.
    function check_epoch_reserves_at_most_the_escrow(uint96 funded, uint64 units) external {
        vm.assume(funded > 0);
        fund(funded);
        post(bytes32(0), bytes32(0), units);
        Settlement memory settlement = ledger.getSettlement(pool);
        assert(settlement.posted == rewardOf(units));
        assert(settlement.posted <= funded);
    }

    /// A claim never takes more than the final epochs together, whatever their root promises.
    function check_claim_stays_within_final_epochs(uint96 funded, uint64 units, uint96 cumulative) external {
        vm.assume(funded > 0);
        fund(funded);
        EpochRecord memory record = postReward(ALICE, cumulative, units);
        vm.warp(record.finalAt);
        claim(record, ALICE, cumulative);
        assert(token.balanceOf(ALICE) <= rewardOf(units));
        assert(token.balanceOf(address(ledger)) + token.balanceOf(ALICE) == funded);
    }

    /// A reward that the epoch covers is paid to whoever earned it, once the epoch is final and not before.
    function check_reward_is_paid_once_final(uint96 cumulative, uint64 units, uint16 wait) external {
        vm.assume(cumulative > 0 && units <= 1_000_000 && cumulative <= rewardOf(units));
        fund(rewardOf(units));
        EpochRecord memory record = postReward(ALICE, cumulative, units);
        vm.warp(START + wait);
        assert(claim(record, ALICE, cumulative) == (wait >= CHALLENGE + VETO));
    }

    /// The same reward is paid once, however often it is claimed.
    function check_same_reward_is_paid_once(uint96 cumulative, uint64 units) external {
        vm.assume(units <= 1_000_000);
        vm.assume(units > 0);
        fund(3 * rewardOf(units));
        EpochRecord memory record = postReward(ALICE, cumulative, units);
        vm.warp(record.finalAt);
        claim(record, ALICE, cumulative);
        claim(record, ALICE, cumulative);
        assert(token.balanceOf(ALICE) == 0 || token.balanceOf(ALICE) == cumulative);
    }

    /// An epoch that the arbiter disabled never pays.
    function check_disabled_epoch_never_pays(uint96 cumulative, uint64 units, uint32 wait) external {
        vm.assume(units <= 1_000_000);
        fund(3_000_000);
        EpochRecord memory record = postReward(ALICE, cumulative, units);
        vm.prank(ARBITER);
        ledger.disableEpoch(pool, record, true);
        vm.warp(START + wait);
        assert(!claim(record, ALICE, cumulative));
    }

    /// The arbiter disables an epoch within the challenge window only, so a final epoch stays final.
    function check_only_recent_epochs_are_disabled(uint64 units, uint16 wait) external {
        vm.assume(units <= 1_000_000);
        fund(3_000_000);
        EpochRecord memory record = postReward(ALICE, 1, units);
        vm.warp(START + wait);
        vm.prank(ARBITER);
        try ledger.disableEpoch(pool, record, true) {
            assert(wait < CHALLENGE);
        } catch {
            assert(wait >= CHALLENGE);
        }
    }

    /// Of two epochs, of which the arbiter disables none, the second or the first, claims in either order never take
    /// more than what stands.
    function check_two_epochs_pay_at_most_what_stands(
        uint64 units,
        uint64 laterUnits,
        uint96 first,
        uint96 second,
        uint8 disabled,
        bool isLaterFirst
    ) external {
        vm.assume(units <= 1_000_000 && laterUnits <= 1_000_000);
        fund(6_000_000);
        EpochRecord memory record = postReward(ALICE, first, units);
        vm.warp(START + 4);
        EpochRecord memory later = postReward(BOB, second, laterUnits);
        uint256 stands = rewardOf(units) + rewardOf(laterUnits);
        if (disabled > 0) {
            stands = disabled == 1 ? rewardOf(units) : 0;
            vm.prank(ARBITER);
            ledger.disableEpoch(pool, disabled == 1 ? later : record, true);
        }
        vm.warp(later.finalAt);
        if (isLaterFirst) claim(later, BOB, second);
        claim(record, ALICE, first);
        if (!isLaterFirst) claim(later, BOB, second);
        assert(token.balanceOf(ALICE) + token.balanceOf(BOB) <= stands);
    }

    /// A refund comes only after the closing, and leaves what posted epochs reserve.
    function check_refund_leaves_what_is_posted(uint96 funded, uint64 units, uint32 wait) external {
        vm.assume(funded > 0);
        fund(funded);
        post(bytes32(0), bytes32(0), units);
        endPool();
        vm.warp(START + wait);
        try ledger.refundPool(pool) {
            assert(wait >= UNBOND + 4 * (CHALLENGE + VETO));
        } catch {}
        assert(token.balanceOf(address(ledger)) >= rewardOf(units));
    }

    /// Anybody sends the escrow of a closed pool to its heir, even if the registry is paused.
    function check_closed_escrow_has_a_way_out(uint96 funded, uint64 units, address caller, uint32 wait) external {
        vm.assume(funded > rewardOf(units) && wait >= UNBOND + 4 * (CHALLENGE + VETO));
        fund(funded);
        post(bytes32(0), bytes32(0), units);
        endPool();
        vm.prank(OPERATOR);
        pools.setHeir(pool, BOB);
        vm.prank(ADMIN);
        pools.pause();
        vm.warp(START + wait);
        vm.prank(caller);
        try ledger.refundPool(pool) {
            assert(token.balanceOf(BOB) == funded - rewardOf(units));
        } catch {
            assert(false);
        }
    }

    /// A pause of the registry stops no claim of a final reward.
    function check_claims_flow_while_paused(uint96 cumulative, uint64 units, address caller) external {
        vm.assume(cumulative > 0 && units <= 1_000_000 && cumulative <= rewardOf(units));
        fund(rewardOf(units));
        EpochRecord memory record = postReward(ALICE, cumulative, units);
        vm.prank(ADMIN);
        pools.pause();
        vm.warp(record.finalAt);
        vm.prank(caller);
        assert(claim(record, ALICE, cumulative));
        assert(token.balanceOf(ALICE) == cumulative);
    }
}
