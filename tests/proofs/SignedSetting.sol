// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt} from "../../contracts/interfaces/ICoveyTypes.sol";
import {LedgerSetting} from "./LedgerSetting.sol";

/// Signers with keys: the pool's signer, its validator, and a node that works for this contract, which accepts every signature in its
/// own name (ERC-1271). The addresses of the three are symbolic.
abstract contract SignedSetting is LedgerSetting {
    uint256 internal constant NODE_KEY = 0x1D;
    uint256 internal constant SIGNER_KEY = 0x1E;
    uint256 internal constant VALIDATOR_KEY = 0x1F;

    address internal node;
    address internal contributor = address(this);

    function setUp() public override {
        node = vm.addr(NODE_KEY);
        signer = vm.addr(SIGNER_KEY);
        validator = vm.addr(VALIDATOR_KEY);
        vm.assume(signer != ARBITER && validator != ARBITER);
        vm.assume(signer != address(0) && node != address(0) && validator != address(0));
        super.setUp();
        bytes32 digest = nodes.digestRegistration(pool, contributor, node, 0, START + 60);
        nodes.registerNode(pool, contributor, node, START + 60, "", sign(NODE_KEY, digest));
    }

    function isValidSignature(bytes32, bytes calldata) external pure returns (bytes4) {
        return this.isValidSignature.selector;
    }

    function makeReceipt(uint64 units) internal view returns (Receipt memory receipt) {
        receipt.pool = pool;
        receipt.task = 7;
        receipt.lease = 9;
        receipt.node = node;
        receipt.contributor = contributor;
        receipt.policyVersion = 4;
        receipt.workKey = keccak256("work");
        receipt.groups = 2;
        receipt.units = units;
        receipt.deadline = uint64(START + 50);
    }

    function sign(uint256 key, bytes32 digest) internal pure returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digest);
        return abi.encodePacked(r, s, v);
    }
}
