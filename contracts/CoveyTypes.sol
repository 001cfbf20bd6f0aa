// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt, Verdict, WorkLeaf, EpochHeader} from "./interfaces/ICoveyTypes.sol";

/// @title CoveyTypes
/// @notice Hashes that all parties must agree on.
/// @dev Vectors.t.sol compares them with the vectors in tests/vectors, which Python computes.
library CoveyTypes {
    /// @dev EIP-712 type hash of a node registration.
    bytes32 internal constant REGISTRATION_TYPEHASH = keccak256(
        "NodeRegistration(uint256 pool,address contributor,address node,uint256 nonce,uint256 deadline)"
    );
    /// @dev EIP-712 type hash of Receipt.
    bytes32 internal constant RECEIPT_TYPEHASH = keccak256(
        "Receipt(uint256 pool,uint256 task,uint256 lease,address node,address contributor,uint64 policyVersion,"
        "bytes32 workKey,uint32 groups,uint64 units,uint64 deadline)"
    );
    /// @dev EIP-712 type hash of a countersignature (see InclusionPromise).
    bytes32 internal constant COUNTERSIGNATURE_TYPEHASH =
        keccak256("Countersignature(bytes32 receiptHash,uint64 signedAt,uint64 dueBy)");
    /// @dev EIP-712 type hash of EpochHeader.
    bytes32 internal constant HEADER_TYPEHASH = keccak256(
        "EpochHeader(uint256 pool,uint64 epoch,bytes32 workRoot,bytes32 rewardRoot,uint64 leafCount,uint64 units,"
        "uint32 verdicts,bytes32 dataHash,bytes32 previousHash)"
    );
    /// @dev EIP-712 type hash of Verdict.
    bytes32 internal constant VERDICT_TYPEHASH = keccak256(
        "Verdict(uint256 pool,bytes32 receiptHash,bytes32 workKey,address validator,uint8 outcome,uint8 reason,"
        "uint8 severity,uint64 units,bytes32 evidenceHash,uint64 deadline)"
    );

    /// @dev EIP-712 struct hash of a node registration.
    function hashRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(REGISTRATION_TYPEHASH, pool, contributor, node, nonce, deadline));
    }

    /// @dev EIP-712 struct hash of a receipt. All members are static, so `abi.encode` concatenates their words.
    function hashReceipt(Receipt calldata receipt) internal pure returns (bytes32) {
        return keccak256(abi.encode(RECEIPT_TYPEHASH, receipt));
    }

    /// @dev EIP-712 struct hash of a verdict. All members are static, as in a receipt.
    function hashVerdict(Verdict calldata verdict) internal pure returns (bytes32) {
        return keccak256(abi.encode(VERDICT_TYPEHASH, verdict));
    }

    /// @dev EIP-712 struct hash of a countersignature.
    function hashCountersignature(bytes32 receiptHash, uint64 signedAt, uint64 dueBy)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(COUNTERSIGNATURE_TYPEHASH, receiptHash, signedAt, dueBy));
    }

    /// @dev Hash of a work leaf. Hashing twice keeps a leaf from being taken for an inner node of the tree.
    function hashWorkLeaf(WorkLeaf calldata leaf) internal pure returns (bytes32) {
        return keccak256(bytes.concat(keccak256(abi.encode(leaf))));
    }

    /// @dev Hash of a reward leaf, hashed twice like a work leaf.
    function hashRewardLeaf(uint256 chainId, address ledger, uint256 pool, address contributor, uint256 cumulative)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(bytes.concat(keccak256(abi.encode(chainId, ledger, pool, contributor, cumulative))));
    }

    /// @dev EIP-712 struct hash of an epoch header, which validators sign and by which headers refer to each other. All
    /// members are static, as in a receipt.
    function hashHeader(EpochHeader calldata header) internal pure returns (bytes32) {
        return keccak256(abi.encode(HEADER_TYPEHASH, header));
    }

    /// @dev Reward for some units at a price for 1,000,000 units, rounded down.
    function computeReward(uint64 units, uint96 rewardPerMillion) internal pure returns (uint256) {
        return uint256(units) * rewardPerMillion / 1_000_000;
    }
}
