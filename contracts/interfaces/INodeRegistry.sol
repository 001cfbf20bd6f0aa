// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @title INodeRegistry
/// @notice Registers which machine keys (nodes) work for which contributor.
/// @dev Consent: a registration carries the signatures of both sides over the EIP-712 type "NodeRegistration" in the
/// domain of this contract. Nobody can be bound against their will, so anyone may send it.
///
/// Replay: the nonce belongs to the node. After a removal, old signatures cannot be used again.
///
/// Signatures: a node is a plain key. A contributor can be a contract wallet (ERC-1271), or a plain key
/// whose account has code (EIP-7702).
interface INodeRegistry {
    /// @notice A node was bound to a contributor.
    /// @param pool Id of the pool.
    /// @param node Key of the machine.
    /// @param contributor Account that vouches for the node.
    event NodeRegistered(uint256 indexed pool, address indexed node, address indexed contributor);

    /// @notice The binding of a node was ended.
    /// @param pool Id of the pool.
    /// @param node Key of the machine.
    /// @param contributor Account that vouched for the node.
    event NodeRemoved(uint256 indexed pool, address indexed node, address indexed contributor);

    /// @notice The operator invited a contributor.
    /// @param pool Id of the pool.
    /// @param contributor Account that was invited.
    event ContributorInvited(uint256 indexed pool, address indexed contributor);

    /// @notice The operator withdrew an invitation.
    /// @param pool Id of the pool.
    /// @param contributor Account that was invited.
    event InvitationWithdrawn(uint256 indexed pool, address indexed contributor);

    /// @notice The pool does not exist or has ended, or PoolRegistry is paused.
    /// @param pool Id of the pool.
    error PoolNotOpen(uint256 pool);

    /// @notice The zero address cannot be a contributor.
    error ZeroAddress();

    /// @notice The node already works for a contributor of this pool.
    /// @param pool Id of the pool.
    /// @param node Key of the machine.
    /// @param contributor Account that vouches for the node.
    error NodeTaken(uint256 pool, address node, address contributor);

    /// @notice The signatures of the registration have expired.
    /// @param deadline Unix time in seconds until which they could be used.
    error SignatureExpired(uint256 deadline);

    /// @notice The account to be bound did not sign this registration.
    /// @param account Contributor or node that should have signed.
    error InvalidSignature(address account);

    /// @notice The caller is not the contributor of the node.
    /// @param pool Id of the pool.
    /// @param node Key of the machine.
    /// @param account The caller.
    error NotContributor(uint256 pool, address node, address account);

    /// @notice The caller is not the operator of the pool.
    /// @param pool Id of the pool.
    /// @param account The caller.
    error NotOperator(uint256 pool, address account);

    /// @notice The contributor has no invitation to the pool.
    /// @param pool Id of the pool.
    /// @param contributor Account without an invitation.
    error NotInvited(uint256 pool, address contributor);

    /// @notice Allows contributors to register nodes in an invite-only pool.
    /// @dev Operator only.
    /// @param pool Id of the pool.
    /// @param contributors Accounts to invite.
    function invite(uint256 pool, address[] calldata contributors) external;

    /// @notice Withdraws an invitation.
    /// @dev Operator only. Registered nodes stay registered.
    /// @param pool Id of the pool.
    /// @param contributor Account that was invited.
    function withdrawInvitation(uint256 pool, address contributor) external;

    /// @notice Binds a node to a contributor in one pool.
    /// @dev Anyone with both signatures can call this. Reverts once the pool has ended and while PoolRegistry is
    /// paused.
    /// @param pool Id of the pool.
    /// @param contributor Account that vouches for the node.
    /// @param node Key of the machine.
    /// @param deadline Unix time in seconds until which the signatures can be used.
    /// @param contributorSignature The contributor's signature, by ECDSA or ERC-1271.
    /// @param nodeSignature The node's 65-byte ECDSA signature.
    function registerNode(
        uint256 pool,
        address contributor,
        address node,
        uint256 deadline,
        bytes calldata contributorSignature,
        bytes calldata nodeSignature
    ) external;

    /// @notice Replaces a node of the caller by another one.
    /// @dev Contributor only, which consents by calling. The new node consents by its signature. The contributor stays
    /// liable for the previous node for one `unbondWindow`. Reverts once the pool has ended and while PoolRegistry is
    /// paused; `removeNode` works at any time.
    /// @param pool Id of the pool.
    /// @param previous Key of the machine to remove.
    /// @param node Key of the machine to add.
    /// @param deadline Unix time in seconds until which the signature can be used.
    /// @param nodeSignature The new node's 65-byte ECDSA signature.
    function rotateNode(
        uint256 pool,
        address previous,
        address node,
        uint256 deadline,
        bytes calldata nodeSignature
    ) external;

    /// @notice Ends the binding of a node.
    /// @dev Contributor only, which stays liable for the node for one `unbondWindow`.
    /// @param pool Id of the pool.
    /// @param node Key of the machine.
    function removeNode(uint256 pool, address node) external;

    /// @notice Returns the contributor of a node.
    /// @param pool Id of the pool.
    /// @param node Key of the machine.
    /// @return The contributor; the zero address if the node is not bound.
    function contributorOf(uint256 pool, address node) external view returns (address);

    /// @notice Returns whether the operator has invited a contributor.
    /// @param pool Id of the pool.
    /// @param contributor Account to check.
    /// @return Whether the account has an invitation.
    function isInvited(uint256 pool, address contributor) external view returns (bool);

    /// @notice Returns whether a contributor is liable for what a node signs.
    /// @param pool Id of the pool.
    /// @param node Key of the machine.
    /// @param contributor Account to check.
    /// @return True while the node is bound to the contributor, and for one `unbondWindow` after that.
    function isLiable(uint256 pool, address node, address contributor) external view returns (bool);

    /// @notice Returns whether a node is or ever was bound to a contributor.
    /// @dev Liability ends, but this stays true. An old receipt can therefore be distinguished from one that the node
    /// could never have signed for this contributor.
    /// @param pool Id of the pool.
    /// @param node Key of the machine.
    /// @param contributor Account to check.
    /// @return Whether the node was ever bound to the contributor.
    function wasBound(uint256 pool, address node, address contributor) external view returns (bool);

    /// @notice Returns the nonce that the next registration of a node must contain.
    /// @param node Key of the machine.
    /// @return The nonce, which counts the registrations of the node in all pools.
    function nonceOf(address node) external view returns (uint256);

    /// @notice Returns the EIP-712 digest that contributor and node sign.
    /// @param pool Id of the pool.
    /// @param contributor Account that vouches for the node.
    /// @param node Key of the machine.
    /// @param nonce Nonce of the node.
    /// @param deadline Unix time in seconds until which the signatures can be used.
    /// @return EIP-712 digest in the domain of this contract.
    function digestRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        external
        view
        returns (bytes32);

    /// @notice Returns the EIP-712 struct hash of a registration.
    /// @param pool Id of the pool.
    /// @param contributor Account that vouches for the node.
    /// @param node Key of the machine.
    /// @param nonce Nonce of the node.
    /// @param deadline Unix time in seconds until which the signatures can be used.
    /// @return EIP-712 struct hash.
    function hashRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        external
        pure
        returns (bytes32);
}
