// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt, Verdict, WorkLeaf, EpochHeader} from "./interfaces/ICoveyTypes.sol";

/// Hashes that all parties agree on; tests/vectors holds the same values from Python.
library CoveyTypes {
    bytes32 internal constant REGISTRATION_TYPEHASH = keccak256(
        "NodeRegistration(uint256 pool,address contributor,address node,uint256 nonce,uint256 deadline)"
    );
    bytes32 internal constant RECEIPT_TYPEHASH = keccak256(
        "Receipt(uint256 pool,uint256 task,uint256 lease,address node,address contributor,uint64 policyVersion,"
        "bytes32 workKey,uint32 groups,uint64 units,uint64 deadline)"
    );
    bytes32 internal constant COUNTERSIGNATURE_TYPEHASH =
        keccak256("Countersignature(bytes32 receiptHash,uint64 signedAt,uint64 latestEpoch)");
    bytes32 internal constant VERDICT_TYPEHASH = keccak256(
        "Verdict(uint256 pool,bytes32 receiptHash,bytes32 workKey,address validator,uint8 outcome,uint8 reason,"
        "uint8 severity,uint64 units,bytes32 evidenceHash,uint64 deadline)"
    );

    function hashRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(REGISTRATION_TYPEHASH, pool, contributor, node, nonce, deadline));
    }

    // The members of both structs are static, so their encoding is the concatenation of their words.
    function hashReceipt(Receipt calldata receipt) internal pure returns (bytes32) {
        return keccak256(abi.encode(RECEIPT_TYPEHASH, receipt));
    }

    function hashVerdict(Verdict calldata verdict) internal pure returns (bytes32) {
        return keccak256(abi.encode(VERDICT_TYPEHASH, verdict));
    }

    function hashCountersignature(bytes32 receiptHash, uint64 signedAt, uint64 latestEpoch)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(COUNTERSIGNATURE_TYPEHASH, receiptHash, signedAt, latestEpoch));
    }

    function hashWorkLeaf(WorkLeaf calldata leaf) internal pure returns (bytes32) {
        return keccak256(bytes.concat(keccak256(abi.encode(leaf))));
    }

    function hashRewardLeaf(uint256 chainId, address ledger, uint256 pool, address contributor, uint256 cumulative)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(bytes.concat(keccak256(abi.encode(chainId, ledger, pool, contributor, cumulative))));
    }

    function hashHeader(EpochHeader calldata header) internal pure returns (bytes32) {
        return keccak256(abi.encode(header));
    }
}
