// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// Which machine keys (nodes) work for which contributor.  A registration carries both signatures over the EIP-712 type
/// "NodeRegistration" (domain of this contract), so neither side can be bound without its will, and anyone may send it.
/// The nonce is the node's, so an old pair of signatures cannot be replayed after a removal.
interface INodeRegistry {
    event NodeRegistered(uint256 indexed pool, address indexed node, address indexed contributor);
    event NodeRemoved(uint256 indexed pool, address indexed node, address indexed contributor);

    error PoolNotOpen(uint256 pool);
    error ZeroAddress();
    /// The node already works for a contributor of this pool.
    error NodeTaken(uint256 pool, address node, address contributor);
    error SignatureExpired(uint256 deadline);
    /// The signature over the registration is not that of the account which it should bind.
    error InvalidSignature(address account);
    error NotContributor(uint256 pool, address node, address account);

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

    /// Ends the binding.  Contributor only.
    function removeNode(uint256 pool, address node) external;

    /// The contributor of a node in a pool; zero where there is none.
    function contributorOf(uint256 pool, address node) external view returns (address);

    /// Whether the contributor answers for what the node signs: while bound, and one unbonding window after.
    function isLiable(uint256 pool, address node, address contributor) external view returns (bool);

    /// The nonce that the node's next registration must carry.
    function nonceOf(address node) external view returns (uint256);

    /// The EIP-712 struct hash.
    function hashRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        external
        pure
        returns (bytes32);

    /// The EIP-712 digest that both sign.
    function digestRegistration(uint256 pool, address contributor, address node, uint256 nonce, uint256 deadline)
        external
        view
        returns (bytes32);
}
