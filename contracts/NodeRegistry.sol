// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {SignatureChecker} from "@openzeppelin/contracts/utils/cryptography/SignatureChecker.sol";
import {CoveyTypes} from "./CoveyTypes.sol";
import {INodeRegistry} from "./interfaces/INodeRegistry.sol";
import {IPoolRegistry} from "./interfaces/IPoolRegistry.sol";

// Windows last seconds to days, as each pool chooses. A block producer can shift the block time by seconds at most.
// slither-disable-start timestamp
/// @title NodeRegistry
/// @notice Registers which machine keys (nodes) work for which contributor.
/// @dev See INodeRegistry for the rules.
contract NodeRegistry is INodeRegistry, EIP712 {
    /// @notice Registry of the pools.
    IPoolRegistry public immutable POOLS;

    /// @inheritdoc INodeRegistry
    mapping(uint256 pool => mapping(address node => address)) public contributorOf;
    /// @inheritdoc INodeRegistry
    mapping(uint256 pool => mapping(address contributor => bool)) public isInvited;
    /// @inheritdoc INodeRegistry
    mapping(address node => uint256) public nonceOf;
    /// @dev Last second in which the contributor is liable for the node: the maximum of uint256 while they are bound,
    /// and 0 if they never were.
    mapping(uint256 pool => mapping(address node => mapping(address contributor => uint256))) private _liableUntil;

    modifier onlyOperator(uint256 pool) {
        if (msg.sender != POOLS.operatorOf(pool)) revert NotOperator(pool, msg.sender);
        _;
    }

    constructor(IPoolRegistry pools) EIP712("Covey", "3") {
        POOLS = pools;
    }

    /// @inheritdoc INodeRegistry
    function invite(uint256 pool, address[] calldata contributors) external onlyOperator(pool) {
        for (uint256 i = 0; i < contributors.length; ++i) {
            isInvited[pool][contributors[i]] = true;
            emit ContributorInvited(pool, contributors[i]);
        }
    }

    /// @inheritdoc INodeRegistry
    function withdrawInvitation(uint256 pool, address contributor) external onlyOperator(pool) {
        if (!isInvited[pool][contributor]) revert NotInvited(pool, contributor);
        isInvited[pool][contributor] = false;
        emit InvitationWithdrawn(pool, contributor);
    }

    /// @inheritdoc INodeRegistry
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
        if (!_isSigned(contributor, digest, contributorSignature)) revert InvalidSignature(contributor);
        _bind(pool, contributor, node, deadline, digest, nodeSignature);
    }

    /// @inheritdoc INodeRegistry
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

    /// @inheritdoc INodeRegistry
    function isLiable(uint256 pool, address node, address contributor) external view returns (bool) {
        return block.timestamp <= _liableUntil[pool][node][contributor];
    }

    /// @inheritdoc INodeRegistry
    function wasBound(uint256 pool, address node, address contributor) external view returns (bool) {
        return _liableUntil[pool][node][contributor] != 0;
    }

    /// @inheritdoc INodeRegistry
    function removeNode(uint256 pool, address node) public {
        if (contributorOf[pool][node] != msg.sender) revert NotContributor(pool, node, msg.sender);

        contributorOf[pool][node] = address(0);
        _liableUntil[pool][node][msg.sender] = block.timestamp + POOLS.unbondWindowOf(pool);

        emit NodeRemoved(pool, node, msg.sender);
    }

    /// @inheritdoc INodeRegistry
    function digestRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        public
        view
        returns (bytes32)
    {
        return _hashTypedDataV4(hashRegistration(pool, contributor, node, nonce, deadline));
    }

    /// @inheritdoc INodeRegistry
    function hashRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        public
        pure
        returns (bytes32)
    {
        return CoveyTypes.hashRegistration(pool, contributor, node, nonce, deadline);
    }

    /// @dev Checks the node's consent and everything that registration and rotation have in common, then binds the
    /// node.
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
        if (POOLS.isInviteOnly(pool) && !isInvited[pool][contributor]) revert NotInvited(pool, contributor);
        if (ECDSA.recoverCalldata(digest, nodeSignature) != node) revert InvalidSignature(node);

        ++nonceOf[node];
        contributorOf[pool][node] = contributor;
        _liableUntil[pool][node][contributor] = type(uint256).max;

        emit NodeRegistered(pool, node, contributor);
    }

    /// @dev Whether a contributor signed, by ECDSA or ERC-1271. ECDSA comes first, because an account with a key can
    /// have code without ERC-1271 (EIP-7702). A malformed signature recovers the zero address, which is no contributor.
    function _isSigned(address contributor, bytes32 digest, bytes calldata signature) private view returns (bool) {
        // The reason of a failure does not matter, because ERC-1271 is tried next.
        // slither-disable-next-line unused-return
        (address signer,,) = ECDSA.tryRecoverCalldata(digest, signature);
        return signer == contributor
            || SignatureChecker.isValidERC1271SignatureNowCalldata(contributor, digest, signature);
    }
}
// slither-disable-end timestamp
