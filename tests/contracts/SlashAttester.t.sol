// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Attestation, EpochHeader} from "../../contracts/interfaces/ICoveyTypes.sol";
import {EpochRecord} from "../../contracts/interfaces/IEpochLedger.sol";
import {ISlashingCourt} from "../../contracts/interfaces/ISlashingCourt.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

/// Tests of SlashingCourt.slashAttester: attesting an epoch that the arbiter disables costs a validator 15 of its 20.
contract SlashAttesterTest is Fixture {
    EpochHeader internal header;
    EpochRecord internal record;
    bytes internal notDisabled;

    function setUp() public override {
        super.setUp();
        header = makeHeader(keccak256("work"), keccak256("reward"), 1);
        record = postHeader(header);
        notDisabled = abi.encodeWithSelector(ISlashingCourt.NotRefuted.selector, record.headerHash);
    }

    function disable() internal {
        disable(true);
    }

    function disable(bool isFalse) internal {
        vm.prank(arbiter);
        ledger.disableEpoch(pool, record, isFalse);
    }

    function refuse(bytes memory reason, Attestation memory attestation) internal {
        vm.expectRevert(reason);
        court.slashAttester(header, attestation);
    }

    function test_WhenTheEpochWasDisabled_ItBurnsTheBondOnce() public {
        Attestation memory attestation = attest(header, validatorKeys[1]);
        disable();
        vm.expectEmit();
        emit ISlashingCourt.AttesterSlashed(record.headerHash, pool, validators[1], 15);
        vm.prank(stranger);
        court.slashAttester(header, attestation);
        assertEq(stakes.stakeOf(pool, BondKind.VALIDATOR, validators[1]), 5);
        assertEq(token.balanceOf(stakes.BURN()), 15);
        refuse(abi.encodeWithSelector(ISlashingCourt.AlreadySlashed.selector), attestation);
        court.slashAttester(header, attest(header, validatorKeys[0]));
        assertEq(stakes.stakeOf(pool, BondKind.VALIDATOR, validators[0]), 5);
    }

    /// What counts when it is signed cannot be withdrawn before the window of the arbiter has passed.
    function test_WhenTheValidatorHasLeftAtOnce_ItStillPays() public {
        Attestation memory attestation = attest(header, validatorKeys[1]);
        vm.prank(validators[1]);
        stakes.unbond(pool, BondKind.VALIDATOR, 20);
        vm.warp(START + 9);
        disable();
        vm.warp(START + 19);
        court.slashAttester(header, attestation);
        assertEq(stakes.backingOf(pool, BondKind.VALIDATOR, validators[1]), 5);
    }

    function test_WhenTheEpochStands_ItReverts() public {
        refuse(notDisabled, attest(header, validatorKeys[1]));
    }

    /// An operator that withholds the data after validators have checked it must not cost them their bonds.
    function test_WhenTheEpochIsDisabledForItsDataAlone_ItReverts() public {
        Attestation memory attestation = attest(header, validatorKeys[1]);
        disable(false);
        assertTrue(!ledger.isPosted(pool, record));
        refuse(notDisabled, attestation);
    }

    /// The arbiter disables the earlier epoch. It says nothing about the later one, which falls with it.
    function test_WhenOnlyAnEarlierEpochWasNamed_ItReverts() public {
        vm.warp(START + 1);
        EpochHeader memory later = makeHeader(keccak256("work"), keccak256("reward"), 2);
        bytes32 hash = postHeader(later).headerHash;
        Attestation memory attestation = attest(later, validatorKeys[1]);
        disable();
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.NotRefuted.selector, hash));
        court.slashAttester(later, attestation);
    }

    function test_WhenTheSignatureIsOverAnotherHeader_ItReverts() public {
        disable();
        EpochHeader memory other = header;
        other.units = 2;
        Attestation memory attestation = attest(other, validatorKeys[1]);
        other.units = 1;
        refuse(abi.encodeWithSelector(ISlashingCourt.NothingToSlash.selector), attestation);
        attestation.r = 0;
        refuse(abi.encodeWithSignature("ECDSAInvalidSignature()"), attestation);
    }
}
