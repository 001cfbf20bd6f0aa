// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// Which policy a pool has at each step: the hash of its manifest, published once and never changed.
interface IPolicyRegistry {
    event PolicyPublished(uint256 indexed pool, uint64 indexed step, bytes32 manifestHash);

    error NotTrainer(uint256 pool, address account);
    error PoolNotActive(uint256 pool);
    /// Steps count 0, 1, 2 ... without a gap.
    error WrongStep(uint256 expected, uint256 actual);
    error ZeroHash();
    error UnknownStep(uint256 pool, uint256 step);

    /// Publishes the policy of the next step.  The pool's trainer only.
    function publish(uint256 pool, uint64 step, bytes32 manifestHash) external;

    /// The manifest hash of a published step; reverts for others.
    function policyOf(uint256 pool, uint64 step) external view returns (bytes32);

    /// How many steps are published.
    function stepsOf(uint256 pool) external view returns (uint64);
}
