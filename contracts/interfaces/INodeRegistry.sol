// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// Which machine keys (nodes) work for which contributor.  A registration carries both signatures over the EIP-712
/// type "NodeRegistration" (domain of this contract), so neither side can be bound without its will, and anyone may
/// send it. The nonce is the node's, so an old pair of signatures cannot be replayed after a removal.
///
/// A node is a plain key; a contributor may be a contract wallet (ERC-1271).
interface INodeRegistry {
    event NodeRegistered(uint256 indexed pool, address indexed node, address indexed contributor);
    event NodeRemoved(uint256 indexed pool, address indexed node, address indexed contributor);
    event ContributorInvited(uint256 indexed pool, address indexed contributor);
    event InvitationWithdrawn(uint256 indexed pool, address indexed contributor);

    error PoolNotOpen(uint256 pool);
    error ZeroAddress();
    /// The node already works for a contributor of this pool.
    error NodeTaken(uint256 pool, address node, address contributor);
    error SignatureExpired(uint256 deadline);
    /// The signature over the registration is not that of the account which it should bind.
    error InvalidSignature(address account);
    error NotContributor(uint256 pool, address node, address account);
    error NotOperator(uint256 pool, address account);
    /// The pool takes contributors by invitation only.
    error NotInvited(uint256 pool, address contributor);

    /// Lets contributors register nodes in a pool that wants invitations.  Operator only.
    function invite(uint256 pool, address[] calldata contributors) external;

    /// Takes an invitation back; nodes that are registered stay.  Operator only.
    function withdrawInvitation(uint256 pool, address contributor) external;

    /// Binds a node to a contributor in one pool.  Callable by anyone who has both signatures.
    /// @param deadline Unix seconds, until when the signatures may be used.
    function registerNode(
        uint256 pool,
        address contributor,
        address node,
        uint256 deadline,
        bytes calldata contributorSignature,
        bytes calldata nodeSignature
    ) external;

    /// Replaces a node's key by another, which signs; the contributor agrees by sending this.  The former stays
    /// liable for one unbonding window.
    function rotateNode(
        uint256 pool,
        address previous,
        address node,
        uint256 deadline,
        bytes calldata nodeSignature
    ) external;

    /// Ends the binding; the contributor stays liable for one unbonding window.  Contributor only.
    function removeNode(uint256 pool, address node) external;

    /// The contributor of a node in a pool; zero where there is none.
    function contributorOf(uint256 pool, address node) external view returns (address);

    /// Whether the operator has invited the contributor.
    function isInvited(uint256 pool, address contributor) external view returns (bool);

    /// Whether the contributor answers for what the node signs: while bound, and one unbonding window after.
    function isLiable(uint256 pool, address node, address contributor) external view returns (bool);

    /// Whether the node is or ever was bound to the contributor.  Liability ends, this does not: what the node signed
    /// for the contributor can be told from what it never could, however long ago that was.
    function wasBound(uint256 pool, address node, address contributor) external view returns (bool);

    /// The nonce that the node's next registration must carry.
    function nonceOf(address node) external view returns (uint256);

    /// The EIP-712 digest that both sign.
    function digestRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        external
        view
        returns (bytes32);

    /// The EIP-712 struct hash.
    function hashRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        external
        pure
        returns (bytes32);
}
