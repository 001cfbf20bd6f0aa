// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {EpochHeader} from "../../contracts/interfaces/ICoveyTypes.sol";
import {EpochRecord, IEpochLedger} from "../../contracts/interfaces/IEpochLedger.sol";
import {PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {BondKind, IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

/// ERC-20 token that can take a fee, return false, or call another contract during a transfer.
contract BadToken is ERC20("Bad", "BAD") {
    bool public isTaxing;
    bool public isRefusing;
    address public target;
    bytes public call;

    function mint(address to, uint256 amount) external {
        _mint(to, amount);
    }

    function misbehave(bool taxing, bool refusing) external {
        (isTaxing, isRefusing) = (taxing, refusing);
    }

    function reenter(address to, bytes calldata data) external {
        (target, call) = (to, data);
    }

    function transfer(address to, uint256 amount) public override returns (bool) {
        return !isRefusing && super.transfer(to, amount);
    }

    function transferFrom(address from, address to, uint256 amount) public override returns (bool) {
        return !isRefusing && super.transferFrom(from, to, amount);
    }

    function _update(address from, address to, uint256 amount) internal override {
        uint256 tax = isTaxing && from != address(0) ? 1 : 0;
        super._update(from, to, amount - tax);
        if (tax > 0) super._update(from, address(this), tax);
        if (target == address(0)) return;
        (bool isDone, bytes memory reason) = target.call(call);
        if (isDone) return;
        assembly {
            revert(add(reason, 32), mload(reason))
        }
    }
}

/// A pool whose token misbehaves after the pool was created.
contract BadTokensTest is Fixture {
    BadToken internal bad;
    uint256 internal there;

    function setUp() public override {
        super.setUp();
        bad = new BadToken();
        PoolTerms memory terms = makeTerms();
        terms.token = address(bad);
        there = makePool(terms);
        bad.mint(address(this), 1000);
        bad.approve(address(ledger), 1000);
        bad.approve(address(stakes), 1000);
    }

    function test_WhenTheTokenTakesAFee_ItReverts() public {
        bad.misbehave(true, false);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.UnsupportedToken.selector, address(bad)));
        ledger.fundPool(there, 100);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.UnsupportedToken.selector, address(bad)));
        stakes.stake(there, BondKind.CONTRIBUTOR, 100);
    }

    function test_WhenTheTokenReturnsFalse_ItReverts() public {
        stakes.stake(there, BondKind.CONTRIBUTOR, 100);
        stakes.unbond(there, BondKind.CONTRIBUTOR, 100);
        bad.misbehave(false, true);
        bytes memory reason = abi.encodeWithSelector(SafeERC20.SafeERC20FailedOperation.selector, address(bad));
        vm.expectRevert(reason);
        ledger.fundPool(there, 100);
        vm.expectRevert(reason);
        stakes.stake(there, BondKind.CONTRIBUTOR, 100);
        vm.warp(START + 20);
        vm.expectRevert(reason);
        stakes.withdraw(there, BondKind.CONTRIBUTOR);
        assertEq(stakes.unbondingsOf(there, BondKind.CONTRIBUTOR, address(this)).length, 1);
    }

    function test_WhenTheTokenReenters_ItReverts() public {
        stakes.stake(there, BondKind.CONTRIBUTOR, 100);
        stakes.unbond(there, BondKind.CONTRIBUTOR, 50);
        ledger.fundPool(there, 100);
        bytes memory reason =
            abi.encodeWithSelector(ReentrancyGuardTransient.ReentrancyGuardReentrantCall.selector);

        bad.reenter(address(stakes), abi.encodeCall(stakes.stake, (there, BondKind.CONTRIBUTOR, 1)));
        vm.expectRevert(reason);
        stakes.stake(there, BondKind.CONTRIBUTOR, 100);
        bad.reenter(address(ledger), abi.encodeCall(ledger.fundPool, (there, 1)));
        vm.expectRevert(reason);
        ledger.fundPool(there, 100);
        bad.reenter(address(stakes), abi.encodeCall(stakes.withdraw, (there, BondKind.CONTRIBUTOR)));
        vm.warp(START + 20);
        vm.expectRevert(reason);
        stakes.withdraw(there, BondKind.CONTRIBUTOR);
    }

    function test_WhenTheTokenReentersAClaimOrARefund_ItReverts() public {
        ledger.fundPool(there, 300);
        bytes32 leaf = ledger.hashRewardLeaf(block.chainid, address(ledger), there, contributor, 30);
        EpochHeader memory header = EpochHeader(there, 0, keccak256("work"), leaf, 1, 10, keccak256("data"), 0);
        EpochRecord memory record =
            EpochRecord(ledger.hashHeader(header), leaf, 0, uint64(START + 20), 30, 30);
        vm.prank(operator);
        ledger.post(header);
        vm.prank(operator);
        pools.endPool(there);
        vm.warp(START + 100);
        bytes memory again = abi.encodeCall(ledger.claim, (there, record, contributor, 30, new bytes32[](0)));
        bytes memory reason =
            abi.encodeWithSelector(ReentrancyGuardTransient.ReentrancyGuardReentrantCall.selector);
        bad.reenter(address(ledger), again);
        vm.expectRevert(reason);
        ledger.claim(there, record, contributor, 30, new bytes32[](0));
        vm.expectRevert(reason);
        vm.prank(operator);
        ledger.refundPool(there);
    }

    /// A bad token of one pool does not affect the stake of another.
    function test_WhenOnePoolsTokenIsBad_OtherPoolsStillWork() public {
        stakes.stake(there, BondKind.CONTRIBUTOR, 100);
        bad.misbehave(true, true);
        unbond(100);
        vm.warp(START + 20);
        withdraw();
        assertEq(token.balanceOf(contributor), 100);
    }
}
