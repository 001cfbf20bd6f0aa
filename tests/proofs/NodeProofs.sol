// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {SignedSetting} from "./SignedSetting.sol";

/// Properties of NodeRegistry.
contract NodeProofs is SignedSetting {
    /// A contributor answers for a removed node for one unbonding window, which is as long as its stake stays.
    function check_removed_node_stays_liable(uint16 wait) external {
        vm.prank(contributor);
        nodes.removeNode(pool, node);
        vm.warp(START + wait);
        assert(nodes.isLiable(pool, node, contributor) == (wait <= UNBOND));
        assert(nodes.wasBound(pool, node, contributor));
    }
}
