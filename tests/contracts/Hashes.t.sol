// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochHeader, Receipt, Verdict, WorkLeaf} from "../../contracts/interfaces/ICoveyTypes.sol";
import {Fixture} from "./Fixture.sol";

/// Compares each hash with its definition, written out here member by member.
contract HashesTest is Fixture {
    function domainOf(address contractAddress) internal view returns (bytes32) {
        return keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256("Covey"),
                keccak256("3"),
                block.chainid,
                contractAddress
            )
        );
    }

    function digestOf(address contractAddress, bytes32 structHash) internal view returns (bytes32) {
        return keccak256(bytes.concat(hex"1901", domainOf(contractAddress), structHash));
    }

    function test_Receipt_HashAndDigest(Receipt memory r) public view {
        bytes32 typeHash = keccak256(
            "Receipt(uint256 pool,uint256 task,uint256 lease,address node,address contributor,uint64 policyVersion,bytes32 workKey,uint32 groups,uint64 units,uint64 deadline)"
        );
        bytes memory head = abi.encode(typeHash, r.pool, r.task, r.lease, r.node, r.contributor);
        bytes memory tail = abi.encode(r.policyVersion, r.workKey, r.groups, r.units, r.deadline);
        bytes32 expected = keccak256(bytes.concat(head, tail));
        assertEq(court.hashReceipt(r), expected);
        assertEq(court.digestReceipt(r), digestOf(address(court), expected));
    }

    function test_Verdict_HashAndDigest(Verdict memory v) public view {
        bytes32 typeHash = keccak256(
            "Verdict(uint256 pool,bytes32 receiptHash,bytes32 workKey,address validator,uint8 outcome,uint8 reason,uint8 severity,uint64 units,bytes32 evidenceHash,uint64 deadline)"
        );
        bytes memory head = abi.encode(typeHash, v.pool, v.receiptHash, v.workKey, v.validator, v.outcome);
        bytes memory tail = abi.encode(v.reason, v.severity, v.units, v.evidenceHash, v.deadline);
        bytes32 expected = keccak256(bytes.concat(head, tail));
        assertEq(court.hashVerdict(v), expected);
        assertEq(court.digestVerdict(v), digestOf(address(court), expected));
    }

    function test_Countersignature_HashAndDigest(bytes32 receiptHash, uint64 signedAt, uint64 latest) public view {
        bytes32 typeHash = keccak256("Countersignature(bytes32 receiptHash,uint64 signedAt,uint64 dueBy)");
        bytes32 expected = keccak256(abi.encode(typeHash, receiptHash, signedAt, latest));
        assertEq(ledger.hashCountersignature(receiptHash, signedAt, latest), expected);
        assertEq(
            ledger.digestCountersignature(receiptHash, signedAt, latest), digestOf(address(ledger), expected)
        );
    }

    function test_Registration_HashAndDigest(uint256 to, address who, address machine, uint256 nonce, uint256 deadline)
        public
        view
    {
        bytes32 typeHash = keccak256(
            "NodeRegistration(uint256 pool,address contributor,address node,uint256 nonce,uint256 deadline)"
        );
        bytes32 expected = keccak256(abi.encode(typeHash, to, who, machine, nonce, deadline));
        assertEq(nodes.hashRegistration(to, who, machine, nonce, deadline), expected);
        assertEq(
            nodes.digestRegistration(to, who, machine, nonce, deadline), digestOf(address(nodes), expected)
        );
    }

    function test_Leaves_AreHashedTwice(WorkLeaf memory l, address account, uint256 cumulative) public view {
        bytes memory head = abi.encode(l.receiptHash, l.workKey, l.node, l.contributor, l.task);
        bytes memory tail = abi.encode(l.policyVersion, l.signedAt, l.outcome, l.reason, l.units, l.evidenceHash);
        bytes32 inner = keccak256(bytes.concat(head, tail));
        assertEq(ledger.hashWorkLeaf(l), keccak256(bytes.concat(inner)));
        bytes32 reward = keccak256(abi.encode(block.chainid, address(ledger), pool, account, cumulative));
        assertEq(
            ledger.hashRewardLeaf(block.chainid, address(ledger), pool, account, cumulative),
            keccak256(bytes.concat(reward))
        );
    }

    function test_Header_HashAndDigest(EpochHeader memory h) public view {
        bytes memory head = abi.encode(h.pool, h.epoch, h.workRoot, h.rewardRoot);
        bytes memory tail = abi.encode(h.leafCount, h.units, h.verdicts, h.dataHash, h.previousHash);
        bytes32 typeHash = keccak256(
            "EpochHeader(uint256 pool,uint64 epoch,bytes32 workRoot,bytes32 rewardRoot,uint64 leafCount,uint64 units,"
            "uint32 verdicts,bytes32 dataHash,bytes32 previousHash)"
        );
        bytes32 structHash = keccak256(bytes.concat(abi.encode(typeHash), head, tail));
        assertEq(ledger.hashHeader(h), structHash);
        assertEq(ledger.digestHeader(h), digestOf(address(ledger), structHash));
    }
}
