// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {SignatureChecker} from "@openzeppelin/contracts/utils/cryptography/SignatureChecker.sol";
import {CoveyTypes} from "./CoveyTypes.sol";
import {INodeRegistry} from "./interfaces/INodeRegistry.sol";
import {IPoolRegistry, PoolState} from "./interfaces/IPoolRegistry.sol";

/// The prose is in INodeRegistry.
contract NodeRegistry is INodeRegistry, EIP712 {
    IPoolRegistry public immutable POOLS;

    mapping(uint256 pool => mapping(address node => address)) public contributorOf;
    mapping(address node => uint256) public nonceOf;
    mapping(uint256 pool => mapping(address node => mapping(address contributor => uint256))) private _liableUntil;

    constructor(IPoolRegistry pools) EIP712("Covey", "1") {
        POOLS = pools;
    }

    function registerNode(
        uint256 pool,
        address contributor,
        address node,
        uint256 deadline,
        bytes calldata contributorSignature,
        bytes calldata nodeSignature
    ) external {
        PoolState state = POOLS.stateOf(pool);
        if (state != PoolState.Created && state != PoolState.Active) revert PoolNotOpen(pool);
        if (contributor == address(0) || node == address(0)) revert ZeroAddress();
        if (contributorOf[pool][node] != address(0)) revert NodeTaken(pool, node, contributorOf[pool][node]);
        if (block.timestamp > deadline) revert SignatureExpired(deadline);
        bytes32 digest = digestRegistration(pool, contributor, node, nonceOf[node], deadline);
        _requireSignature(contributor, digest, contributorSignature);
        _requireSignature(node, digest, nodeSignature);

        ++nonceOf[node];
        contributorOf[pool][node] = contributor;
        _liableUntil[pool][node][contributor] = type(uint256).max;

        emit NodeRegistered(pool, node, contributor);
    }

    function removeNode(uint256 pool, address node) external {
        if (contributorOf[pool][node] != msg.sender) revert NotContributor(pool, node, msg.sender);

        contributorOf[pool][node] = address(0);
        _liableUntil[pool][node][msg.sender] = block.timestamp + POOLS.getTerms(pool).unbondWindow;

        emit NodeRemoved(pool, node, msg.sender);
    }

    function isLiable(uint256 pool, address node, address contributor) external view returns (bool) {
        return block.timestamp <= _liableUntil[pool][node][contributor];
    }

    function hashRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        public
        pure
        returns (bytes32)
    {
        return CoveyTypes.hashRegistration(pool, contributor, node, nonce, deadline);
    }

    function digestRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        public
        view
        returns (bytes32)
    {
        return _hashTypedDataV4(hashRegistration(pool, contributor, node, nonce, deadline));
    }

    // A contributor may be a contract wallet (ERC-1271); for a plain key this is ECDSA recovery.
    function _requireSignature(address account, bytes32 digest, bytes calldata signature) private view {
        if (!SignatureChecker.isValidSignatureNow(account, digest, signature)) revert InvalidSignature(account);
    }
}
