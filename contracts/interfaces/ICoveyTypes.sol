// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// What a node claims: that the groups of one task exist in one file.  EIP-712 type "Receipt", domain of
/// SlashingCourt, signed by `node`.  Its struct hash, without the domain, is the `receiptHash` that everything else
/// refers to.
struct Receipt {
    /// The pool, counted from 1.
    uint256 pool;
    /// The task and the lease under which the node held it: together with `node` one slot, for one receipt only.
    uint256 task;
    uint256 lease;
    address node;
    /// The account that vouches for `node`, stakes and is paid.
    address contributor;
    /// The step whose policy sampled the rollouts.
    uint64 policyVersion;
    /// SHA-256 of the submitted file.
    bytes32 workKey;
    uint32 groups;
    /// Completion tokens, as the node counts them.
    uint64 units;
    /// Unix seconds, until when the submission may be handed in.
    uint64 deadline;
}

/// What one validator found.  EIP-712 type "Verdict", domain of SlashingCourt, signed by `validator`.
struct Verdict {
    uint256 pool;
    bytes32 receiptHash;
    bytes32 workKey;
    address validator;
    /// 1 accept, 2 reject, 3 unknown.
    uint8 outcome;
    /// Which check failed; a number of the protocol, not of the contracts.
    uint8 reason;
    /// 0 none, 1 soft (void), 2 hard (slash).
    uint8 severity;
    /// Completion tokens, as the validator counts them.
    uint64 units;
    /// Hash of the stored evidence.
    bytes32 evidenceHash;
    /// Unix seconds, until when the verdict may be used on chain.
    uint64 deadline;
}

/// One countersigned submission in the work tree of an epoch.  Leaves are double-hashed, as in
/// @openzeppelin/merkle-tree.
struct WorkLeaf {
    bytes32 receiptHash;
    bytes32 workKey;
    address node;
    address contributor;
    uint256 task;
    uint64 policyVersion;
    /// When the operator countersigned, in Unix seconds.  The audit's draw follows from the first block that is the
    /// pool's `draw_seconds` later, so anybody can repeat it.
    uint64 signedAt;
    uint8 outcome;
    uint8 reason;
    uint64 units;
    bytes32 evidenceHash;
}

/// One settlement period.  Only its hash is stored on chain; the fields are in the event EpochPosted.
struct EpochHeader {
    uint256 pool;
    /// Counted from 0 in each pool, without a gap.
    uint64 epoch;
    bytes32 workRoot;
    bytes32 rewardRoot;
    uint64 leafCount;
    /// Units accepted in this epoch alone.
    uint64 units;
    /// Hash of the stored leaves.
    bytes32 dataHash;
    /// Hash of the header before; zero for epoch 0.
    bytes32 previousHash;
}
