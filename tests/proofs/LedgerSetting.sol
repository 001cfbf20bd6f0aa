// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {CoveyTypes} from "../../contracts/CoveyTypes.sol";
import {EpochLedger} from "../../contracts/EpochLedger.sol";
import {NodeRegistry} from "../../contracts/NodeRegistry.sol";
import {SlashingCourt} from "../../contracts/SlashingCourt.sol";
import {StakeManager} from "../../contracts/StakeManager.sol";
import {Attestation, EpochHeader} from "../../contracts/interfaces/ICoveyTypes.sol";
import {EpochRecord} from "../../contracts/interfaces/IEpochLedger.sol";
import {Setting} from "./Setting.sol";

/// All contracts, as they are deployed, and the steps with which an epoch is funded, posted and claimed.
abstract contract LedgerSetting is Setting {
    NodeRegistry internal nodes;
    EpochLedger internal ledger;
    SlashingCourt internal court;

    /// The addresses that halmos gives to contracts are consecutive.
    function deployStakes() internal override {
        nodes = new NodeRegistry(pools);
        uint160 last = uint160(address(nodes));
        stakes = new StakeManager(pools, address(last + 2), address(last + 3));
        ledger = new EpochLedger(pools, nodes, stakes);
        court = new SlashingCourt(pools, nodes, stakes);
    }

    function fund(uint256 amount) internal {
        token.mint(OPERATOR, amount);
        vm.prank(OPERATOR);
        token.approve(address(ledger), amount);
        vm.prank(OPERATOR);
        ledger.fundPool(pool, amount);
    }

    /// Posts the next epoch as the pool's signer, and returns what the ledger keeps of it.
    function post(bytes32 workRoot, bytes32 rewardRoot, uint64 units)
        internal
        returns (EpochHeader memory header, EpochRecord memory record)
    {
        header.pool = pool;
        header.epoch = ledger.epochsOf(pool);
        header.workRoot = workRoot;
        header.rewardRoot = rewardRoot;
        header.leafCount = 1;
        header.units = units;
        header.previousHash = ledger.headOf(pool);
        vm.prank(pools.signerOf(pool));
        ledger.post(header, new Attestation[](0));
        record.headerHash = ledger.hashHeader(header);
        record.rewardRoot = rewardRoot;
        record.epoch = header.epoch;
        record.finalAt = uint64(block.timestamp + CHALLENGE + VETO);
        record.reward = uint96(rewardOf(units));
        record.cumulative = ledger.getSettlement(pool).posted;
        assert(ledger.isPosted(pool, record));
    }

    /// Posts an epoch whose only reward is that of one account.
    function postReward(address account, uint256 cumulative, uint64 units) internal returns (EpochRecord memory record) {
        (, record) = post(bytes32(0), rewardLeaf(account, cumulative), units);
    }

    function claim(EpochRecord memory record, address account, uint256 cumulative) internal returns (bool isPaid) {
        try ledger.claim(pool, record, account, cumulative, new bytes32[](0)) {
            return true;
        } catch {
            return false;
        }
    }

    /// What an epoch of some units pays, by the contracts' own formula.
    function rewardOf(uint64 units) internal pure returns (uint256) {
        return CoveyTypes.computeReward(units, PRICE);
    }

    function rewardLeaf(address account, uint256 cumulative) internal view returns (bytes32) {
        return ledger.hashRewardLeaf(block.chainid, address(ledger), pool, account, cumulative);
    }
}
