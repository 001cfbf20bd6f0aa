// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt, Verdict} from "../../contracts/interfaces/ICoveyTypes.sol";
import {Accusation, Finding} from "../../contracts/interfaces/ISlashingCourt.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";
import {SignedSetting} from "./SignedSetting.sol";

/// Properties of SlashingCourt with one case, which a validator with a key opens at START.
contract CourtProofs is SignedSetting {
    /// A case slashes in the grace period that follows its veto window, and at no other time.
    function check_case_executes_in_its_window(uint32 wait) external {
        (Accusation memory accusation,) = openCase();
        vm.warp(START + wait);
        try court.execute(accusation) {
            assert(wait >= VETO && wait < VETO + court.GRACE());
            assert(stakes.backingOf(pool, BondKind.CONTRIBUTOR, contributor) == 100 - SLASH / 2);
        } catch {
            assert(wait < VETO || wait >= VETO + court.GRACE());
        }
    }

    /// The arbiter vetoes within the window only. A vetoed case takes nothing, whoever executes it and when.
    function check_vetoed_case_takes_nothing(uint16 wait, uint32 later) external {
        (Accusation memory accusation,) = openCase();
        vm.warp(START + wait);
        vm.prank(ARBITER);
        try court.veto(accusation) {
            assert(wait < VETO);
            vm.warp(START + uint256(wait) + later);
            try court.execute(accusation) {
                assert(false);
            } catch {}
            assert(stakes.lockedOf(pool, contributor) == 0);
            assert(stakes.backingOf(pool, BondKind.CONTRIBUTOR, contributor) == 100);
        } catch {
            assert(wait >= VETO);
        }
    }

    /// A vetoed case costs a validator that signed it one penalty, however often its finding is shown.
    function check_vetoed_signer_pays_once(uint16 wait) external {
        vm.assume(wait < VETO);
        (Accusation memory accusation, Finding memory finding) = openCase();
        vm.warp(START + wait);
        vm.prank(ARBITER);
        court.veto(accusation);
        for (uint256 i = 0; i < 2; ++i) {
            try court.slashSigner(accusation, keccak256("work"), finding) {} catch {}
        }
        assert(stakes.backingOf(pool, BondKind.VALIDATOR, validator) == 20 - 15);
    }

    function openCase() private returns (Accusation memory accusation, Finding memory finding) {
        bond(contributor, BondKind.CONTRIBUTOR, 100);
        bond(validator, BondKind.VALIDATOR, 20);
        Receipt memory receipt = makeReceipt(50);
        bytes32 receiptHash = court.hashReceipt(receipt);
        Verdict memory verdict;
        verdict.pool = pool;
        verdict.receiptHash = receiptHash;
        verdict.workKey = receipt.workKey;
        verdict.validator = validator;
        verdict.outcome = 2;
        verdict.reason = 7;
        verdict.severity = 2;
        verdict.deadline = uint64(START + 500);
        finding.validator = validator;
        finding.deadline = verdict.deadline;
        finding.signature = sign(VALIDATOR_KEY, court.digestVerdict(verdict));
        Finding[] memory findings = new Finding[](1);
        findings[0] = finding;
        court.propose(receipt, sign(NODE_KEY, court.digestReceipt(receipt)), 7, findings);
        accusation = Accusation(receiptHash, pool, node, contributor);
    }
}
