// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPoolRegistry} from "../../contracts/interfaces/IPoolRegistry.sol";
import {Fixture} from "./Fixture.sol";

contract AnnounceTest is Fixture {
    bytes32 internal constant METADATA = bytes32(uint256(7));

    function announce(address caller, string memory url) internal {
        vm.prank(caller);
        pools.announce(pool, url, METADATA);
    }

    function makeUrl(uint256 length) internal pure returns (string memory) {
        return string(new bytes(length));
    }

    function test_WhenTheOperatorCalls_ItEmitsUrlAndHashEachTime() public {
        string[3] memory urls = ["https://pool.example", "https://other.example", ""];
        for (uint256 i = 0; i < urls.length; ++i) {
            vm.expectEmit();
            emit IPoolRegistry.PoolAnnounced(pool, urls[i], METADATA);
            announce(operator, urls[i]);
        }
    }

    function test_WhenThePoolHasEnded_ItStillEmits() public {
        vm.prank(operator);
        pools.endPool(pool);
        vm.expectEmit();
        emit IPoolRegistry.PoolAnnounced(pool, "https://pool.example", METADATA);
        announce(operator, "https://pool.example");
    }

    function test_WhenTheUrlIsLongest_ItEmits() public {
        announce(operator, makeUrl(pools.MAX_URL()));
    }

    function test_WhenTheUrlIsLonger_ItReverts() public {
        string memory url = makeUrl(pools.MAX_URL() + 1);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.UrlTooLong.selector, 257));
        announce(operator, url);
    }

    function test_WhenAnotherAccountCalls_ItReverts() public {
        address[3] memory others = [stranger, arbiter, trainer];
        for (uint256 i = 0; i < others.length; ++i) {
            vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, pool, others[i]));
            announce(others[i], "https://pool.example");
        }
    }

    function test_WhenThePoolDoesNotExist_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, 99, operator));
        vm.prank(operator);
        pools.announce(99, "https://pool.example", METADATA);
    }
}
