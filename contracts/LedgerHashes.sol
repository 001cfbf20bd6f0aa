// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {CoveyTypes} from "./CoveyTypes.sol";
import {EpochHeader, WorkLeaf} from "./interfaces/ICoveyTypes.sol";
import {IEpochLedger} from "./interfaces/IEpochLedger.sol";

/// The hashes of EpochLedger, for whoever wants to compare its own with them.
abstract contract LedgerHashes is IEpochLedger, EIP712 {
    function digestCountersignature(bytes32 receiptHash, uint64 signedAt, uint64 latestEpoch)
        public
        view
        returns (bytes32)
    {
        return _hashTypedDataV4(hashCountersignature(receiptHash, signedAt, latestEpoch));
    }

    function hashCountersignature(bytes32 receiptHash, uint64 signedAt, uint64 latestEpoch)
        public
        pure
        returns (bytes32)
    {
        return CoveyTypes.hashCountersignature(receiptHash, signedAt, latestEpoch);
    }

    function hashWorkLeaf(WorkLeaf calldata leaf) public pure returns (bytes32) {
        return CoveyTypes.hashWorkLeaf(leaf);
    }

    function hashRewardLeaf(uint256 chainId, address ledger, uint256 pool, address contributor, uint256 cumulative)
        public
        pure
        returns (bytes32)
    {
        return CoveyTypes.hashRewardLeaf(chainId, ledger, pool, contributor, cumulative);
    }

    function hashHeader(EpochHeader calldata header) public pure returns (bytes32) {
        return CoveyTypes.hashHeader(header);
    }
}
