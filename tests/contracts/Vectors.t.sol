// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import {CoveyTypes} from "../../contracts/CoveyTypes.sol";
import {EpochLedger} from "../../contracts/EpochLedger.sol";
import {NodeRegistry} from "../../contracts/NodeRegistry.sol";
import {SlashingCourt} from "../../contracts/SlashingCourt.sol";
import {EpochHeader, Receipt, Verdict, WorkLeaf} from "../../contracts/interfaces/ICoveyTypes.sol";
import {PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {Countersignature, NodeRegistration, VectorData} from "./VectorData.sol";
import {Fixture} from "./Fixture.sol";

interface VmPlace {
    function etch(address target, bytes calldata code) external;
    function chainId(uint256 id) external;
}

/// Compares the contracts with the vectors that Python computed. The contracts run at the vectors' address and chain
/// id.
contract VectorsTest is Fixture {
    VmPlace private constant place = VmPlace(address(vm));

    function put(address from) private returns (address) {
        place.chainId(VectorData.CHAIN);
        place.etch(VectorData.CONTRACT, from.code);
        return VectorData.CONTRACT;
    }

    function test_Receipts() public {
        SlashingCourt there = SlashingCourt(put(address(court)));
        for (uint256 i = 0; i < VectorData.COUNT; i++) {
            (Receipt memory value, bytes32 structHash, bytes32 digest) = VectorData.receipt(i);
            assertEq(there.hashReceipt(value), structHash);
            assertEq(there.digestReceipt(value), digest);
        }
    }

    function test_Verdicts() public {
        SlashingCourt there = SlashingCourt(put(address(court)));
        for (uint256 i = 0; i < VectorData.COUNT; i++) {
            (Verdict memory value, bytes32 structHash, bytes32 digest) = VectorData.verdict(i);
            assertEq(there.hashVerdict(value), structHash);
            assertEq(there.digestVerdict(value), digest);
        }
    }

    function test_Registrations() public {
        NodeRegistry there = NodeRegistry(put(address(nodes)));
        for (uint256 i = 0; i < VectorData.COUNT; i++) {
            (NodeRegistration memory v, bytes32 structHash, bytes32 digest) = VectorData.nodeRegistration(i);
            assertEq(there.hashRegistration(v.pool, v.contributor, v.node, v.nonce, v.deadline), structHash);
            assertEq(there.digestRegistration(v.pool, v.contributor, v.node, v.nonce, v.deadline), digest);
        }
    }

    function test_Countersignatures() public {
        EpochLedger there = EpochLedger(put(address(ledger)));
        for (uint256 i = 0; i < VectorData.COUNT; i++) {
            (Countersignature memory v, bytes32 structHash, bytes32 digest) = VectorData.countersignature(i);
            assertEq(there.hashCountersignature(v.receiptHash, v.signedAt, v.dueBy), structHash);
            assertEq(there.digestCountersignature(v.receiptHash, v.signedAt, v.dueBy), digest);
        }
    }

    function test_LeavesAndHeaders() public {
        EpochLedger there = EpochLedger(put(address(ledger)));
        for (uint256 i = 0; i < VectorData.COUNT; i++) {
            (WorkLeaf memory leaf, bytes32 leafHash) = VectorData.workLeaf(i);
            assertEq(ledger.hashWorkLeaf(leaf), leafHash);
            (EpochHeader memory header, bytes32 headerHash, bytes32 digest) = VectorData.epochHeader(i);
            assertEq(ledger.hashHeader(header), headerHash);
            assertEq(there.digestHeader(header), digest);
        }
    }

    function test_Rewards_AreInTheTree() public view {
        for (uint256 i = 0; i < VectorData.REWARDS; i++) {
            (address who, uint256 earned, bytes32 leaf, bytes32[] memory proof) = VectorData.reward(i);
            assertEq(
                ledger.hashRewardLeaf(VectorData.CHAIN, VectorData.CONTRACT, VectorData.POOL, who, earned), leaf
            );
            assertTrue(MerkleProof.verify(proof, VectorData.ROOT, leaf));
            assertTrue(!MerkleProof.verify(proof, VectorData.ROOT, keccak256(abi.encode(leaf))));
        }
    }

    function test_Prices() public pure {
        for (uint256 i = 0; i < VectorData.PRICES; i++) {
            (uint64 units, uint96 perMillion, uint256 earned) = VectorData.price(i);
            assertEq(CoveyTypes.computeReward(units, perMillion), earned);
        }
    }

    function test_Policies_AreStoredByTheHashesOfTheirRecords() public {
        for (uint256 i = 0; i < 2; i++) {
            (, bytes32 recordHash) = VectorData.records(i);
            vm.prank(trainer);
            policies.publish(pool, uint64(i), recordHash);
            assertEq(policies.policyOf(pool, uint64(i)), recordHash);
        }
    }

    function test_Params_AreWhatAPoolIsCreatedWith() public {
        (string memory params, bytes32 paramsHash) = VectorData.params(0);
        PoolTerms memory terms = makeTerms();
        terms.paramsHash = paramsHash;
        assertEq(pools.createPool(terms, validators, params), pool + 1);
    }
}
