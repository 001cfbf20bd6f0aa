// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {CoveyTypes} from "./CoveyTypes.sol";
import {EpochHeader, WorkLeaf} from "./interfaces/ICoveyTypes.sol";
import {IEpochLedger} from "./interfaces/IEpochLedger.sol";

/// @title LedgerHashes
/// @notice Part of EpochLedger that exposes its hashes, so that clients can compare theirs.
abstract contract LedgerHashes is IEpochLedger, EIP712 {
    /// @inheritdoc IEpochLedger
    function digestCountersignature(bytes32 receiptHash, uint64 signedAt, uint64 dueBy)
        public
        view
        returns (bytes32)
    {
        return _hashTypedDataV4(hashCountersignature(receiptHash, signedAt, dueBy));
    }

    /// @inheritdoc IEpochLedger
    function digestHeader(EpochHeader calldata header) public view returns (bytes32) {
        return _hashTypedDataV4(CoveyTypes.hashHeader(header));
    }

    /// @inheritdoc IEpochLedger
    function hashCountersignature(bytes32 receiptHash, uint64 signedAt, uint64 dueBy)
        public
        pure
        returns (bytes32)
    {
        return CoveyTypes.hashCountersignature(receiptHash, signedAt, dueBy);
    }

    /// @inheritdoc IEpochLedger
    function hashWorkLeaf(WorkLeaf calldata leaf) public pure returns (bytes32) {
        return CoveyTypes.hashWorkLeaf(leaf);
    }

    /// @inheritdoc IEpochLedger
    function hashRewardLeaf(uint256 chainId, address ledger, uint256 pool, address contributor, uint256 cumulative)
        public
        pure
        returns (bytes32)
    {
        return CoveyTypes.hashRewardLeaf(chainId, ledger, pool, contributor, cumulative);
    }

    /// @inheritdoc IEpochLedger
    function hashHeader(EpochHeader calldata header) public pure returns (bytes32) {
        return CoveyTypes.hashHeader(header);
    }
}
