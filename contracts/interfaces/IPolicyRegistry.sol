// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @title IPolicyRegistry
/// @notice Registers the policy of a pool at each step: the hash of its record, which is published once and never
/// changes.
interface IPolicyRegistry {
    /// @notice The trainer published a policy.
    /// @param pool Id of the pool.
    /// @param step Step of the policy.
    /// @param recordHash Hash of the policy's record (a Merkle root).
    event PolicyPublished(uint256 indexed pool, uint64 indexed step, bytes32 recordHash);

    /// @notice The caller is not the trainer of the pool.
    /// @param pool Id of the pool.
    /// @param account The caller.
    error NotTrainer(uint256 pool, address account);

    /// @notice The pool is not active, or PoolRegistry is paused.
    /// @param pool Id of the pool.
    error PoolNotActive(uint256 pool);

    /// @notice The step is not the next one. Steps count 0, 1, 2 and so on, without a gap.
    /// @param expected The next step.
    /// @param actual Step that was given.
    error WrongStep(uint256 expected, uint256 actual);

    /// @notice The record hash is zero.
    error ZeroHash();

    /// @notice No policy has been published for this step.
    /// @param pool Id of the pool.
    /// @param step Step that was asked for.
    error UnknownStep(uint256 pool, uint256 step);

    /// @notice Publishes the policy of the next step.
    /// @dev Trainer only, while the pool is active and PoolRegistry is not paused.
    /// @param pool Id of the pool.
    /// @param step The next step.
    /// @param recordHash Hash of the policy's record (a Merkle root).
    function publish(uint256 pool, uint64 step, bytes32 recordHash) external;

    /// @notice Returns the record hash of a published step.
    /// @dev Reverts with UnknownStep for any other step.
    /// @param pool Id of the pool.
    /// @param step Step of the policy.
    /// @return Hash of the policy's record (a Merkle root).
    function policyOf(uint256 pool, uint64 step) external view returns (bytes32);

    /// @notice Returns the number of published steps.
    /// @param pool Id of the pool.
    /// @return Number of steps, which is also the next step.
    function stepsOf(uint256 pool) external view returns (uint64);
}
