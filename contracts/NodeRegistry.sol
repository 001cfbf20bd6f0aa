// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {SignatureChecker} from "@openzeppelin/contracts/utils/cryptography/SignatureChecker.sol";
import {CoveyTypes} from "./CoveyTypes.sol";
import {INodeRegistry} from "./interfaces/INodeRegistry.sol";
import {IPoolRegistry} from "./interfaces/IPoolRegistry.sol";

// A window lasts seconds to days, by a pool's choice; who builds a block can shift its time by seconds at most.
// slither-disable-start timestamp
/// The prose is in INodeRegistry.
contract NodeRegistry is INodeRegistry, EIP712 {
    IPoolRegistry public immutable POOLS;

    mapping(uint256 pool => mapping(address node => address)) public contributorOf;
    mapping(uint256 pool => mapping(address contributor => bool)) public isInvited;
    mapping(address node => uint256) public nonceOf;
    mapping(uint256 pool => mapping(address node => mapping(address contributor => uint256))) private _liableUntil;

    modifier onlyOperator(uint256 pool) {
        if (msg.sender != POOLS.operatorOf(pool)) revert NotOperator(pool, msg.sender);
        _;
    }

    constructor(IPoolRegistry pools) EIP712("Covey", "2") {
        POOLS = pools;
    }

    function invite(uint256 pool, address[] calldata contributors) external onlyOperator(pool) {
        for (uint256 i = 0; i < contributors.length; ++i) {
            isInvited[pool][contributors[i]] = true;
            emit ContributorInvited(pool, contributors[i]);
        }
    }

    function withdrawInvitation(uint256 pool, address contributor) external onlyOperator(pool) {
        if (!isInvited[pool][contributor]) revert NotInvited(pool, contributor);
        isInvited[pool][contributor] = false;
        emit InvitationWithdrawn(pool, contributor);
    }

    function registerNode(
        uint256 pool,
        address contributor,
        address node,
        uint256 deadline,
        bytes calldata contributorSignature,
        bytes calldata nodeSignature
    ) external {
        if (contributor == address(0)) revert ZeroAddress();
        bytes32 digest = digestRegistration(pool, contributor, node, nonceOf[node], deadline);
        if (!SignatureChecker.isValidSignatureNow(contributor, digest, contributorSignature)) {
            revert InvalidSignature(contributor);
        }
        _bind(pool, contributor, node, deadline, digest, nodeSignature);
    }

    function rotateNode(
        uint256 pool,
        address previous,
        address node,
        uint256 deadline,
        bytes calldata nodeSignature
    ) external {
        removeNode(pool, previous);
        bytes32 digest = digestRegistration(pool, msg.sender, node, nonceOf[node], deadline);
        _bind(pool, msg.sender, node, deadline, digest, nodeSignature);
    }

    function isLiable(uint256 pool, address node, address contributor) external view returns (bool) {
        return block.timestamp <= _liableUntil[pool][node][contributor];
    }

    function wasBound(uint256 pool, address node, address contributor) external view returns (bool) {
        return _liableUntil[pool][node][contributor] != 0;
    }

    function removeNode(uint256 pool, address node) public {
        if (contributorOf[pool][node] != msg.sender) revert NotContributor(pool, node, msg.sender);

        contributorOf[pool][node] = address(0);
        _liableUntil[pool][node][msg.sender] = block.timestamp + POOLS.getTerms(pool).unbondWindow;

        emit NodeRemoved(pool, node, msg.sender);
    }

    function digestRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        public
        view
        returns (bytes32)
    {
        return _hashTypedDataV4(hashRegistration(pool, contributor, node, nonce, deadline));
    }

    function hashRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        public
        pure
        returns (bytes32)
    {
        return CoveyTypes.hashRegistration(pool, contributor, node, nonce, deadline);
    }

    function _bind(
        uint256 pool,
        address contributor,
        address node,
        uint256 deadline,
        bytes32 digest,
        bytes calldata nodeSignature
    ) private {
        if (!POOLS.isOpen(pool)) revert PoolNotOpen(pool);
        if (contributorOf[pool][node] != address(0)) revert NodeTaken(pool, node, contributorOf[pool][node]);
        if (block.timestamp > deadline) revert SignatureExpired(deadline);
        if (POOLS.getTerms(pool).isInviteOnly && !isInvited[pool][contributor]) revert NotInvited(pool, contributor);
        if (ECDSA.recoverCalldata(digest, nodeSignature) != node) revert InvalidSignature(node);

        ++nonceOf[node];
        contributorOf[pool][node] = contributor;
        _liableUntil[pool][node][contributor] = type(uint256).max;

        emit NodeRegistered(pool, node, contributor);
    }
}
// slither-disable-end timestamp
