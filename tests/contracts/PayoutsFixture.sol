// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {EpochHeader} from "../../contracts/interfaces/ICoveyTypes.sol";
import {EpochRecord} from "../../contracts/interfaces/IEpochLedger.sol";
import {PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {Fixture} from "./Fixture.sol";

/// What a token does wrong.
enum Fault {
    None,
    /// The recipient gets 1 less.
    Tax,
    /// The sender pays 1 more.
    TaxOnTop,
    Pause,
    ReturnFalse,
    ReturnNothing,
    /// The transfer succeeds and moves nothing.
    Lie,
    BurnGas
}

/// ERC-20 token that can misbehave from some time on, block accounts, and call another contract during a transfer.
contract BadToken is ERC20("Bad", "BAD") {
    Fault public fault;
    mapping(address account => bool) public isBlocked;
    address public target;
    bytes public call;

    function mint(address to, uint256 amount) external {
        _mint(to, amount);
    }

    function misbehave(Fault next) external {
        fault = next;
    }

    function block_(address account, bool isNow) external {
        isBlocked[account] = isNow;
    }

    function reenter(address to, bytes calldata data) external {
        (target, call) = (to, data);
        _approve(address(this), to, type(uint256).max);
    }

    function transfer(address to, uint256 amount) public override returns (bool) {
        return _answer(super.transfer(to, amount));
    }

    function transferFrom(address from, address to, uint256 amount) public override returns (bool) {
        return _answer(super.transferFrom(from, to, amount));
    }

    function decimals() public pure override returns (uint8) {
        return 6;
    }

    function _answer(bool isDone) internal view returns (bool) {
        if (fault == Fault.ReturnNothing) {
            assembly {
                return(0, 0)
            }
        }
        return isDone && fault != Fault.ReturnFalse;
    }

    function _update(address from, address to, uint256 amount) internal override {
        if (from == address(0)) return super._update(from, to, amount);
        require(fault != Fault.Pause, Paused());
        require(!isBlocked[to], Blocked());
        if (fault == Fault.Lie) return;
        while (fault == Fault.BurnGas) {}
        super._update(from, to, fault == Fault.Tax ? amount - 1 : amount);
        if (fault == Fault.Tax || fault == Fault.TaxOnTop) super._update(from, address(this), 1);
        address to_ = target;
        if (to_ == address(0)) return;
        target = address(0);
        (bool isDone, bytes memory reason) = to_.call(call);
        if (isDone) return;
        assembly {
            revert(add(reason, 32), mload(reason))
        }
    }
}

error Paused();
error Blocked();

/// Adds a second pool whose token can misbehave. The test contract holds 1,000 of it and has approved them.
abstract contract PayoutsFixture is Fixture {
    BadToken internal bad;
    uint256 internal there;

    function setUp() public virtual override {
        super.setUp();
        bad = new BadToken();
        there = makeBadPool();
        bad.mint(address(this), 1000);
        bad.approve(address(ledger), type(uint256).max);
        bad.approve(address(stakes), type(uint256).max);
    }

    function makeBadPool() internal returns (uint256) {
        PoolTerms memory terms = makeTerms();
        terms.token = address(bad);
        return makePool(terms);
    }

    /// Posts the first epoch of a pool, whose only leaf promises the contributor its reward, and waits until it is
    /// final.
    function postThere(uint256 to, uint64 units) internal returns (EpochRecord memory record) {
        uint96 reward = uint96(units) * 3;
        bytes32 leaf = ledger.hashRewardLeaf(block.chainid, address(ledger), to, contributor, reward);
        EpochHeader memory header = EpochHeader(to, 0, keccak256("work"), leaf, 1, units, 0, keccak256("data"), 0);
        record = EpochRecord(ledger.hashHeader(header), leaf, 0, uint64(block.timestamp + 20), reward, reward);
        vm.prank(operator);
        ledger.post(header, none);
        vm.warp(block.timestamp + 20);
    }

    function claimThere(uint256 to, EpochRecord memory record) internal {
        ledger.claim(to, record, contributor, record.reward, new bytes32[](0));
    }
}
