// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPolicyRegistry} from "./interfaces/IPolicyRegistry.sol";
import {IPoolRegistry, PoolState} from "./interfaces/IPoolRegistry.sol";

/// The prose is in IPolicyRegistry.
contract PolicyRegistry is IPolicyRegistry {
    IPoolRegistry public immutable POOLS;

    mapping(uint256 pool => bytes32[]) private _manifests;

    constructor(IPoolRegistry pools) {
        POOLS = pools;
    }

    function publish(uint256 pool, uint64 step, bytes32 manifestHash) external {
        if (POOLS.stateOf(pool) != PoolState.Active) revert PoolNotActive(pool);
        if (!POOLS.isOpen(pool)) revert PoolNotActive(pool);
        if (msg.sender != POOLS.getTerms(pool).trainer) revert NotTrainer(pool, msg.sender);
        if (step != _manifests[pool].length) revert WrongStep(_manifests[pool].length, step);
        if (manifestHash == bytes32(0)) revert ZeroHash();

        _manifests[pool].push(manifestHash);

        emit PolicyPublished(pool, step, manifestHash);
    }

    function policyOf(uint256 pool, uint64 step) external view returns (bytes32) {
        if (step >= _manifests[pool].length) revert UnknownStep(pool, step);
        return _manifests[pool][step];
    }

    function stepsOf(uint256 pool) external view returns (uint64) {
        return uint64(_manifests[pool].length);
    }
}
