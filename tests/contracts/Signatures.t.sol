// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EpochHeader, Receipt} from "../../contracts/interfaces/ICoveyTypes.sol";
import {IEpochLedger, InclusionPromise} from "../../contracts/interfaces/IEpochLedger.sol";
import {INodeRegistry} from "../../contracts/interfaces/INodeRegistry.sol";
import {Finding, ISlashingCourt} from "../../contracts/interfaces/ISlashingCourt.sol";
import {Fixture} from "./Fixture.sol";

interface VmChain {
    function chainId(uint256 id) external;
}

/// Tries signatures of every kind that are malformed, malleable, or made for another chain or contract.
contract SignaturesTest is Fixture {
    uint256 internal constant ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;
    Receipt internal receipt;
    Finding[] internal findings;
    bytes internal signature;

    function setUp() public override {
        super.setUp();
        receipt = makeReceipt(1, keccak256("file"));
        signature = signReceipt(receipt);
        Finding[] memory made = makeFindings(receipt, 2);
        findings.push(made[0]);
        findings.push(made[1]);
    }

    /// The same signature with s in the upper half of the curve order.
    function flip(bytes memory low) internal pure returns (bytes memory) {
        (bytes32 r, uint256 s, uint8 v) = (bytes32(0), 0, uint8(low[64]));
        assembly {
            r := mload(add(low, 32))
            s := mload(add(low, 64))
        }
        return abi.encodePacked(r, ORDER - s, v == 27 ? uint8(28) : uint8(27));
    }

    function cut(bytes memory whole) internal pure returns (bytes memory short) {
        short = new bytes(64);
        for (uint256 i = 0; i < 64; ++i) {
            short[i] = whole[i];
        }
    }

    function refuse(bytes memory reason) internal {
        Finding[] memory given = findings;
        vm.expectRevert(reason);
        court.propose(receipt, signature, 7, given);
    }

    function highS(bytes memory low) internal pure returns (bytes memory) {
        bytes32 s;
        bytes memory high = flip(low);
        assembly {
            s := mload(add(high, 64))
        }
        return abi.encodeWithSelector(ECDSA.ECDSAInvalidSignatureS.selector, s);
    }

    function wrongLength(uint256 length) internal pure returns (bytes memory) {
        return abi.encodeWithSelector(ECDSA.ECDSAInvalidSignatureLength.selector, length);
    }

    function test_WhenSIsHigh_ItReverts() public {
        bytes memory good = signature;
        signature = flip(good);
        refuse(highS(good));
        signature = good;
        bytes memory its = findings[1].signature;
        findings[1].signature = flip(its);
        refuse(highS(its));
    }

    function test_WhenTheLengthIsWrong_ItReverts() public {
        bytes memory good = signature;
        signature = cut(good);
        refuse(wrongLength(64));
        signature = bytes.concat(good, hex"00");
        refuse(wrongLength(66));
        signature = "";
        refuse(wrongLength(0));
        signature = good;
        findings[0].signature = cut(findings[0].signature);
        refuse(wrongLength(64));
    }

    function test_WhenVIsInvalid_ItReverts() public {
        signature[64] = bytes1(uint8(29));
        refuse(abi.encodeWithSelector(ECDSA.ECDSAInvalidSignature.selector));
    }

    function test_WhenMadeForAnotherChain_ItReverts() public {
        VmChain(address(vm)).chainId(1);
        refuse(abi.encodeWithSelector(ISlashingCourt.InvalidSignature.selector, node));
        InclusionPromise memory given = InclusionPromise(1, 0, signPromise(31337));
        bytes memory signed = signReceipt(receipt);
        vm.deal(stranger, 1 ether);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.InvalidSignature.selector, operator));
        vm.prank(stranger);
        ledger.challengeOmission{value: 0.001 ether}(receipt, signed, given);
    }

    function test_WhenMadeForAnotherContract_ItReverts() public {
        bytes32 digest = nodes.digestRegistration(pool, stranger, node, 1, START);
        bytes memory mine = sign(STRANGER_KEY, digest);
        bytes memory its = sign(NODE_KEY, digest);
        address here = address(nodes);
        deploy();
        assertTrue(address(nodes) != here);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.InvalidSignature.selector, stranger));
        nodes.registerNode(pool, stranger, node, START, mine, its);
        refuse(abi.encodeWithSelector(ISlashingCourt.InvalidSignature.selector, node));
    }

    function test_WhenARegistrationSignatureIsMalleable_ItReverts() public {
        address other = vm.addr(0x1D);
        bytes32 digest = nodes.digestRegistration(pool, contributor, other, 0, START);
        bytes memory mine = sign(CONTRIBUTOR_KEY, digest);
        bytes memory its = sign(0x1D, digest);
        vm.expectRevert(highS(its));
        nodes.registerNode(pool, contributor, other, START, mine, flip(its));
        vm.expectRevert(wrongLength(64));
        nodes.registerNode(pool, contributor, other, START, mine, cut(its));
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.InvalidSignature.selector, contributor));
        nodes.registerNode(pool, contributor, other, START, flip(mine), its);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.InvalidSignature.selector, contributor));
        nodes.registerNode(pool, contributor, other, START, cut(mine), its);
    }

    function signPromise(uint256 chain) internal returns (bytes memory made) {
        uint256 now_ = block.chainid;
        VmChain(address(vm)).chainId(chain);
        made = sign(OPERATOR_KEY, ledger.digestCountersignature(court.hashReceipt(receipt), 1, 0));
        VmChain(address(vm)).chainId(now_);
    }
}
