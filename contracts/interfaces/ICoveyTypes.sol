// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @notice A node's signed claim that one file holds all groups of one task.
/// @dev EIP-712 type "Receipt" in the domain of SlashingCourt, signed by `node`. All other messages refer to a receipt
/// by `receiptHash`, its EIP-712 struct hash without the domain separator.
/// @param pool Id of the pool. Pools are numbered from 1.
/// @param task Id of the task.
/// @param lease Lease under which the node held the task. A node signs one receipt for each pair of task and lease.
/// @param node Key of the machine that did the work.
/// @param contributor Account that vouches for `node`, stakes for it and receives its rewards.
/// @param policyVersion Step whose policy sampled the rollouts.
/// @param workKey SHA-256 of the submitted file.
/// @param groups Number of groups in the file.
/// @param units Completion tokens, as the node counts them.
/// @param deadline Unix time in seconds until which the work may be submitted.
struct Receipt {
    uint256 pool;
    uint256 task;
    uint256 lease;
    address node;
    address contributor;
    uint64 policyVersion;
    bytes32 workKey;
    uint32 groups;
    uint64 units;
    uint64 deadline;
}

/// @notice One validator's signed judgement of one submission.
/// @dev EIP-712 type "Verdict" in the domain of SlashingCourt, signed by `validator`.
/// @param pool Id of the pool.
/// @param receiptHash EIP-712 struct hash of the receipt.
/// @param workKey SHA-256 of the judged file.
/// @param validator Account that judged and signs.
/// @param outcome 1 accept, 2 reject, 3 unknown.
/// @param reason Number of the check that failed. The protocol defines the numbers; the contracts do not interpret
/// them.
/// @param severity Of a rejection: 1 soft (the work is void), 2 hard (the contributor can be slashed). Of an accept: 0
/// if a part of the work was repeated, 2 hard if all of it was, which can cost the validator its bond. Otherwise 0.
/// @param units Completion tokens, as the validator counts them.
/// @param evidenceHash Hash of the stored evidence.
/// @param deadline Unix time in seconds until which the verdict can open a case.
struct Verdict {
    uint256 pool;
    bytes32 receiptHash;
    bytes32 workKey;
    address validator;
    uint8 outcome;
    uint8 reason;
    uint8 severity;
    uint64 units;
    bytes32 evidenceHash;
    uint64 deadline;
}

/// @notice One countersigned submission in the work tree of an epoch.
/// @dev Leaves are hashed twice, as in @openzeppelin/merkle-tree.
/// @param receiptHash EIP-712 struct hash of the receipt.
/// @param workKey SHA-256 of the submitted file.
/// @param node Key of the machine that did the work.
/// @param contributor Account that receives the rewards of `node`.
/// @param task Id of the task.
/// @param policyVersion Step whose policy sampled the rollouts.
/// @param signedAt Unix time in seconds at which the operator countersigned. Anyone can repeat the audit draw from it:
/// the draw follows from the hash of the first block that is at least the pool's `draw_seconds` later.
/// @param outcome 1 accept, 2 reject, 3 unknown.
/// @param reason Number of the check that failed.
/// @param units Units that are paid.
/// @param evidenceHash Hash of the stored evidence.
struct WorkLeaf {
    bytes32 receiptHash;
    bytes32 workKey;
    address node;
    address contributor;
    uint256 task;
    uint64 policyVersion;
    uint64 signedAt;
    uint8 outcome;
    uint8 reason;
    uint64 units;
    bytes32 evidenceHash;
}

/// @notice Header of one epoch, the settlement period of a pool.
/// @dev The contracts store only its hash; the event EpochPosted carries the fields.
/// @param pool Id of the pool.
/// @param epoch Number of the epoch, counted from 0 in each pool without a gap.
/// @param workRoot Merkle root of the work leaves.
/// @param rewardRoot Merkle root of the reward leaves.
/// @param leafCount Number of work leaves.
/// @param units Units accepted in this epoch alone.
/// @param verdicts Number of verdicts for which this epoch alone pays the fee.
/// @param dataHash Hash of the stored leaves.
/// @param previousHash Hash of the previous header; zero for epoch 0 and after a disabled epoch.
struct EpochHeader {
    uint256 pool;
    uint64 epoch;
    bytes32 workRoot;
    bytes32 rewardRoot;
    uint64 leafCount;
    uint64 units;
    uint32 verdicts;
    bytes32 dataHash;
    bytes32 previousHash;
}

/// @notice A validator's signature over an epoch header, in the 64 bytes of ERC-2098.
/// @dev EIP-712 type "EpochHeader" in the domain of EpochLedger.
/// @param r First half of the signature.
/// @param vs Second half, with the parity of the curve point in the highest bit.
struct Attestation {
    bytes32 r;
    bytes32 vs;
}
