// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochHeader, Receipt, WorkLeaf} from "../../contracts/interfaces/ICoveyTypes.sol";
import {EpochRecord, Inclusion, InclusionPromise} from "../../contracts/interfaces/IEpochLedger.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";
import {SignedSetting} from "./SignedSetting.sol";

/// Properties of omission challenges: one promised receipt, which an epoch holds after it was challenged.
contract OmissionProofs is SignedSetting {
    uint64 private constant UNITS = 50;

    receive() external payable {}

    /// The bond never pays for a receipt that an epoch has answered, whenever anybody asks.
    function check_answered_work_is_never_paid_by_the_bond(uint96 bonded, uint16 wait) external {
        vm.assume(bonded > 1);
        Receipt memory receipt = challenge(bonded);
        (EpochHeader memory header, EpochRecord memory record) = include(receipt);
        ledger.answerOmissions(record, header, inclusionsOf(receipt));
        vm.warp(START + 1 + uint256(wait));
        try ledger.resolveOmission(receipt) {
            assert(false);
        } catch {}
        assert(stakes.backingOf(pool, BondKind.OPERATOR, OPERATOR) == bonded);
    }

    /// Work that the bond has paid for, and that an epoch holds later, is paid once in all.
    function check_included_work_is_never_paid_twice(uint96 bonded) external {
        vm.assume(bonded > 1);
        Receipt memory receipt = challenge(bonded);
        vm.warp(START + 1 + CHALLENGE);
        ledger.resolveOmission(receipt);
        (EpochHeader memory header, EpochRecord memory record) = include(receipt);
        vm.warp(record.finalAt);
        ledger.answerOmissions(record, header, inclusionsOf(receipt));
        claim(record, contributor, rewardOf(UNITS));
        assert(token.balanceOf(contributor) <= rewardOf(UNITS));
    }

    /// An omission is upheld only after the window in which the operator may answer.
    function check_operator_has_a_window_to_answer(uint96 bonded, uint16 wait) external {
        vm.assume(bonded > 1);
        Receipt memory receipt = challenge(bonded);
        vm.warp(START + 1 + uint256(wait));
        try ledger.resolveOmission(receipt) {
            assert(wait >= CHALLENGE);
        } catch {
            assert(wait < CHALLENGE);
        }
    }

    /// Challenges a receipt at START + 1, when its promise is overdue.
    function challenge(uint96 bonded) private returns (Receipt memory receipt) {
        fund(6_000_000);
        bond(OPERATOR, BondKind.OPERATOR, bonded);
        receipt = makeReceipt(UNITS);
        bytes32 receiptHash = court.hashReceipt(receipt);
        InclusionPromise memory given;
        given.signedAt = uint64(START);
        given.dueBy = uint64(START);
        given.signature = sign(SIGNER_KEY, ledger.digestCountersignature(receiptHash, given.signedAt, given.dueBy));
        vm.warp(START + 1);
        vm.deal(address(this), 1 ether);
        ledger.challengeOmission{value: ledger.OMISSION_BOND()}(
            receipt, sign(NODE_KEY, court.digestReceipt(receipt)), given
        );
    }

    /// Posts an epoch that holds the receipt alone.
    function include(Receipt memory receipt) private returns (EpochHeader memory, EpochRecord memory) {
        bytes32 leaf = ledger.hashWorkLeaf(leafOf(receipt));
        return post(leaf, rewardLeaf(contributor, rewardOf(receipt.units)), receipt.units);
    }

    function inclusionsOf(Receipt memory receipt) private view returns (Inclusion[] memory inclusions) {
        inclusions = new Inclusion[](1);
        inclusions[0] = Inclusion(receipt, leafOf(receipt), new bytes32[](0));
    }

    function leafOf(Receipt memory receipt) private view returns (WorkLeaf memory leaf) {
        leaf.receiptHash = court.hashReceipt(receipt);
        leaf.workKey = receipt.workKey;
        leaf.node = receipt.node;
        leaf.contributor = receipt.contributor;
        leaf.task = receipt.task;
        leaf.policyVersion = receipt.policyVersion;
        leaf.signedAt = uint64(START);
        leaf.outcome = 1;
        leaf.units = receipt.units;
    }
}
