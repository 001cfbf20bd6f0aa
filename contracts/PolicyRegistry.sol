// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPolicyRegistry} from "./interfaces/IPolicyRegistry.sol";
import {IPoolRegistry, PoolState} from "./interfaces/IPoolRegistry.sol";

/// @title PolicyRegistry
/// @notice Registers the policy of a pool at each step.
/// @dev See IPolicyRegistry for the rules.
contract PolicyRegistry is IPolicyRegistry {
    /// @notice Registry of the pools.
    IPoolRegistry public immutable POOLS;

    /// @dev Record hashes of each pool, indexed by step.
    mapping(uint256 pool => bytes32[]) private _records;

    constructor(IPoolRegistry pools) {
        POOLS = pools;
    }

    /// @inheritdoc IPolicyRegistry
    function publish(uint256 pool, uint64 step, bytes32 recordHash) external {
        if (POOLS.stateOf(pool) != PoolState.Active) revert PoolNotActive(pool);
        if (!POOLS.isOpen(pool)) revert PoolNotActive(pool);
        if (msg.sender != POOLS.trainerOf(pool)) revert NotTrainer(pool, msg.sender);
        if (step != _records[pool].length) revert WrongStep(_records[pool].length, step);
        if (recordHash == bytes32(0)) revert ZeroHash();

        _records[pool].push(recordHash);

        emit PolicyPublished(pool, step, recordHash);
    }

    /// @inheritdoc IPolicyRegistry
    function policyOf(uint256 pool, uint64 step) external view returns (bytes32) {
        if (step >= _records[pool].length) revert UnknownStep(pool, step);
        return _records[pool][step];
    }

    /// @inheritdoc IPolicyRegistry
    function stepsOf(uint256 pool) external view returns (uint64) {
        return uint64(_records[pool].length);
    }
}
