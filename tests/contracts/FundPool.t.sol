// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {IPoolRegistry, PoolState, PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {World} from "./World.sol";

/// Keeps one unit of each transfer for itself.
contract TaxedToken is ERC20("Taxed", "TAX") {
    function mint(address to, uint256 amount) external {
        _mint(to, amount);
    }

    function _update(address from, address to, uint256 amount) internal override {
        if (from == address(0)) return super._update(from, to, amount);
        super._update(from, to, amount - 1);
        super._update(from, address(this), 1);
    }
}

contract FundPoolTest is World {
    function test_FundPool_CountsWhatAnybodyPaysIn() public {
        token.mint(stranger, 70);
        vm.prank(stranger);
        token.approve(address(pools), 70);

        vm.expectEmit();
        emit IPoolRegistry.PoolFunded(pool, stranger, 70);
        vm.prank(stranger);
        pools.fundPool(pool, 70);

        assertEq(pools.escrowOf(pool), 1_000_070);
        assertEq(pools.fundedOf(pool), 1_000_070);
        assertEq(token.balanceOf(address(pools)), 1_000_070);
        assertEq(token.balanceOf(stranger), 0);
    }

    function test_FundPool_KeepsPoolsApart() public {
        uint256 other = makePool();
        give(operator, other, 5);
        assertEq(pools.escrowOf(pool), 1_000_000);
        assertEq(pools.escrowOf(other), 5);
    }

    function test_FundPool_RefusesNothingUnknownAndEnded() public {
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.ZeroAmount.selector));
        pools.fundPool(pool, 0);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.WrongState.selector, 99, PoolState.None));
        pools.fundPool(99, 1);
        vm.prank(operator);
        pools.endPool(pool);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.WrongState.selector, pool, PoolState.Ended));
        pools.fundPool(pool, 1);
    }

    function test_FundPool_RefusesTokenThatTaxesTransfers() public {
        TaxedToken taxed = new TaxedToken();
        PoolTerms memory terms = makeTerms();
        terms.token = address(taxed);
        uint256 created = pools.createPool(terms, validators, PARAMS);
        taxed.mint(address(this), 100);
        taxed.approve(address(pools), 100);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.UnsupportedToken.selector, address(taxed)));
        pools.fundPool(created, 100);
    }
}
