// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochRecord} from "../../../contracts/interfaces/IEpochLedger.sol";
import {BondKind} from "../../../contracts/interfaces/IStakeManager.sol";
import {Fault, PayoutsFixture} from "../PayoutsFixture.sol";
import {FuzzSelector} from "./Fuzzed.sol";

/// Pays from two pools whose common token takes on one fault after the other. `broken` names a rule that was violated.
contract PayoutsHandler is PayoutsFixture {
    string public broken;
    uint256[2] internal both;
    uint256[2] internal funded;
    uint256[2] internal paid;
    uint256[2] internal staked;
    EpochRecord[2] internal records;
    address internal burn;

    constructor() {
        super.setUp();
        both = [there, makeBadPool()];
        burn = stakes.BURN();
        for (uint256 i = 0; i < 2; ++i) {
            ledger.fundPool(both[i], 300);
            stakes.stake(both[i], BondKind.CONTRIBUTOR, 100);
            (funded[i], staked[i]) = (300, 100);
            records[i] = postThere(both[i], uint64(30 * (i + 1)));
        }
        bad.mint(address(this), 100_000);
    }

    function misbehave(uint256 fault, bool isBlocked) external {
        bad.misbehave(Fault(fault % 7));
        bad.block_(contributor, isBlocked);
    }

    function fund(uint256 i, uint256 amount) external {
        amount = bound(amount, 1, 50);
        try ledger.fundPool(both[i % 2], amount) {
            funded[i % 2] += amount;
        } catch {}
    }

    function stake(uint256 i, uint256 amount) external {
        amount = bound(amount, 1, 50);
        try stakes.stake(both[i % 2], BondKind.CONTRIBUTOR, amount) {
            staked[i % 2] += amount;
        } catch {}
    }

    function claim(uint256 i) external {
        if (ledger.claimedOf(both[i % 2], contributor) > 0) return;
        claimThere(both[i % 2], records[i % 2]);
        paid[i % 2] += records[i % 2].reward;
    }

    function slash(uint256 i, uint256 amount) external {
        uint256 to = both[i % 2];
        vm.prank(address(court));
        try stakes.lock(to, address(this), true) {} catch { return; }
        uint96 locked = uint96(stakes.lockedOf(to, address(this)));
        amount = bound(amount, 0, locked);
        vm.prank(address(court));
        stakes.slash(to, address(this), uint96(amount));
        staked[i % 2] -= amount;
        if (amount == locked) return;
        vm.prank(address(court));
        stakes.slash(to, address(this), uint96(locked - amount));
        staked[i % 2] -= locked - amount;
    }

    function leave(uint256 i) external {
        uint256 to = both[i % 2];
        uint256 bonded = stakes.stakeOf(to, BondKind.CONTRIBUTOR, address(this));
        if (bonded == 0) return;
        stakes.unbond(to, BondKind.CONTRIBUTOR, bonded);
        vm.warp(block.timestamp + 20);
        stakes.withdraw(to, BondKind.CONTRIBUTOR);
        staked[i % 2] -= bonded;
    }

    function withdrawCredit(uint256 i, uint256 from, bool isElsewhere) external {
        address account = [contributor, burn, address(this)][from % 3];
        address recipient = isElsewhere ? stranger : account;
        uint256 due = ledger.creditOf(both[i % 2], account);
        uint256 held = bad.balanceOf(address(ledger));
        vm.prank(account);
        try ledger.withdrawCredit(both[i % 2], account, recipient) {
            if (held - bad.balanceOf(address(ledger)) != due) broken = "a credit was paid with another amount";
        } catch {}
        vm.prank(account);
        try stakes.withdrawCredit(both[i % 2], account, recipient) {} catch {}
    }

    /// Each contract holds exactly what its pools and their creditors own, whatever the token did.
    function check() external view {
        require(bytes(broken).length == 0, broken);
        uint256 escrow = 0;
        uint256 stake_ = 0;
        for (uint256 i = 0; i < 2; ++i) {
            require(ledger.escrowOf(both[i]) == funded[i] - paid[i], "the escrow of a pool differs");
            require(
                stakes.stakeOf(both[i], BondKind.CONTRIBUTOR, address(this)) == staked[i], "the stake of a pool differs"
            );
            escrow += funded[i] - paid[i] + ledger.creditOf(both[i], contributor);
            stake_ += staked[i] + stakes.creditOf(both[i], burn) + stakes.creditOf(both[i], address(this));
        }
        require(bad.balanceOf(address(ledger)) == escrow, "the ledger is not solvent");
        require(bad.balanceOf(address(stakes)) == stake_, "the stake is not solvent");
    }

    /// Once the token works again, every credit is paid in full.
    function settle() external {
        bad.misbehave(Fault.None);
        bad.block_(contributor, false);
        for (uint256 i = 0; i < 2; ++i) {
            pay(i, contributor);
            pay(i, burn);
            pay(i, address(this));
        }
        require(bad.balanceOf(address(ledger)) == funded[0] + funded[1] - paid[0] - paid[1], "a credit was not paid");
        require(bad.balanceOf(address(stakes)) == staked[0] + staked[1], "a credit was not paid");
    }

    function pay(uint256 i, address account) internal {
        if (ledger.creditOf(both[i], account) > 0) ledger.withdrawCredit(both[i], account, account);
        if (stakes.creditOf(both[i], account) > 0) stakes.withdrawCredit(both[i], account, account);
    }
}

/// Whatever a token does, both contracts stay solvent, no pool pays for another, and no account stops another.
contract PayoutsInvariants {
    PayoutsHandler internal handler;

    function setUp() public {
        handler = new PayoutsHandler();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function targetSelectors() public view returns (FuzzSelector[] memory targets) {
        bytes4[] memory selectors = new bytes4[](7);
        selectors[0] = PayoutsHandler.misbehave.selector;
        selectors[1] = PayoutsHandler.fund.selector;
        selectors[2] = PayoutsHandler.stake.selector;
        selectors[3] = PayoutsHandler.claim.selector;
        selectors[4] = PayoutsHandler.slash.selector;
        selectors[5] = PayoutsHandler.leave.selector;
        selectors[6] = PayoutsHandler.withdrawCredit.selector;
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(handler), selectors);
    }

    function invariant_WhateverTheTokenDoes_PoolsAndCreditorsStaySolvent() public view {
        handler.check();
    }

    function afterInvariant() public {
        handler.settle();
    }
}
