// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt, Verdict} from "../../../contracts/interfaces/ICoveyTypes.sol";
import {PoolTerms} from "../../../contracts/interfaces/IPoolRegistry.sol";
import {Accusation, CaseState, Finding} from "../../../contracts/interfaces/ISlashingCourt.sol";
import {Balance, BondKind, Unbonding} from "../../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "../Fixture.sol";

/// State that StakeHandler keeps itself and compares with the contracts.
abstract contract StakeModel is Fixture {
    struct Opened {
        Accusation accused;
        Receipt receipt;
        uint256 amount;
        uint256 span;
    }

    uint256 internal constant LITTLE = 50;
    string public broken;
    uint256 public minted;
    uint256[2] internal contributorKeys = [CONTRIBUTOR_KEY, 0x1C];
    uint256[2] internal nodeKeys = [NODE_KEY, 0x1D];
    uint256[5] internal benchKeys = [uint256(0x51), 0x52, 0x53, 0x54, 0x55];
    address[] internal accounts;
    Opened[] internal cases;
    mapping(bytes32 receiptHash => bool) internal judged;
    mapping(bytes32 slot => bool) internal equivocated;
    mapping(uint256 span => mapping(address contributor => uint256)) internal lockedIn;
    mapping(address account => uint256) internal withdrawn;
    mapping(address validator => uint256) internal powerFrom;
    uint256 internal penalties;

    constructor() {
        super.setUp();
        registerOther();
        for (uint256 i = 0; i < 5; ++i) {
            for (uint256 j = i + 1; j < 5; ++j) {
                if (vm.addr(benchKeys[j]) < vm.addr(benchKeys[i])) {
                    (benchKeys[i], benchKeys[j]) = (benchKeys[j], benchKeys[i]);
                }
            }
            accounts.push(vm.addr(benchKeys[i]));
            if (!pools.isValidator(pool, accounts[i])) bond(accounts[i], BondKind.VALIDATOR, 20);
            else powerFrom[accounts[i]] = START;
        }
        accounts.push(contributor);
        accounts.push(vm.addr(contributorKeys[1]));
        accounts.push(operator);
        accounts.push(stranger);
        bond(contributor, BondKind.CONTRIBUTOR, LITTLE);
        bond(accounts[6], BondKind.CONTRIBUTOR, LITTLE);
        minted = token.totalSupply() - 1_000_000;
    }

    function makeTerms() internal view override returns (PoolTerms memory terms) {
        terms = super.makeTerms();
        (terms.lightSlashBps, terms.strikes, terms.maxSlashes) = (3333, 1, 2);
    }

    function noteLock(address who, uint256 amount, uint256 cap) internal {
        if (amount > cap) broken = "an incident took too much";
        uint256 span = block.timestamp / 20;
        lockedIn[span][who] += amount;
        if (lockedIn[span][who] > 120) broken = "one span took too much";
    }

    function noteRelease(Opened storage open) internal {
        lockedIn[open.span][open.accused.contributor] -= open.amount;
    }

    /// Chooses, in half of the calls, one of the two contributors and the kind of bond that cases can slash.
    function choose(uint256 who, uint256 which) internal view returns (address account, uint256 kind) {
        if (who % 2 == 0) return (accounts[5 + (who / 2) % 2], 0);
        return (accounts[(who / 2) % accounts.length], which % 3);
    }

    function registerOther() internal {
        address other = vm.addr(contributorKeys[1]);
        address its = vm.addr(nodeKeys[1]);
        bytes32 digest = nodes.digestRegistration(pool, other, its, 0, START);
        nodes.registerNode(pool, other, its, START, sign(contributorKeys[1], digest), sign(nodeKeys[1], digest));
    }

    function makeReceiptOf(uint256 who, uint256 task) internal view returns (Receipt memory receipt) {
        receipt = makeReceipt(task, keccak256(abi.encode(who, task)));
        (receipt.node, receipt.contributor) = (vm.addr(nodeKeys[who]), vm.addr(contributorKeys[who]));
    }

    /// Hard verdict of the `i`-th of the five validator accounts.
    function makeFindingOf(Receipt memory receipt, uint256 i, uint64 deadline) internal view returns (Finding memory) {
        Verdict memory verdict = makeVerdict(receipt, 0);
        (verdict.validator, verdict.deadline) = (accounts[i], deadline);
        return makeFinding(verdict, benchKeys[i]);
    }

    /// Findings of those validator accounts whose bit in `signers` is set, the first of them expired if `isLate`. Also
    /// returns whether they should open a case.
    function makeFindingsOf(Receipt memory receipt, uint256 signers, bool isLate)
        internal
        view
        returns (Finding[] memory findings, bool isLawful)
    {
        uint256 count = 0;
        for (uint256 i = 0; i < 5; ++i) {
            count += (signers >> i) & 1;
        }
        findings = new Finding[](count);
        isLawful = count >= 2;
        for (uint256 i = 5; i > 0; --i) {
            if ((signers >> (i - 1)) & 1 == 0) continue;
            bool isThisLate = isLate && count == 1;
            uint256 deadline = isThisLate ? block.timestamp - 1 : block.timestamp + 100;
            findings[--count] = makeFindingOf(receipt, i - 1, uint64(deadline));
            isLawful = isLawful && !isThisLate && hasPower(accounts[i - 1]);
        }
    }

    function hasPower(address account) internal view returns (bool) {
        bool isSeated = powerFrom[account] != 0 && block.timestamp >= powerFrom[account];
        return isSeated && totalOf(account, BondKind.VALIDATOR) >= 20;
    }

    /// The operator's bond is the pool's, and every account reads it.
    function isOwner(address account, BondKind kind) internal view returns (bool) {
        return kind != BondKind.OPERATOR || account == operator;
    }

    function totalOf(address account, BondKind kind) internal view returns (uint256) {
        if (!isOwner(account, kind)) return 0;
        Balance memory balance = stakes.getBalance(pool, kind, account);
        return uint256(balance.bonded) + balance.leaving;
    }

    function leavingOf(address account, BondKind kind) internal view returns (uint256) {
        return stakes.getBalance(pool, kind, account).leaving;
    }

    function sumOf(address account, BondKind kind) internal view returns (uint256 sum) {
        Unbonding[] memory unbondings = stakes.unbondingsOf(pool, kind, account);
        for (uint256 i = 0; i < unbondings.length; ++i) {
            sum += unbondings[i].amount;
        }
    }

    function maturedOf(address account, BondKind kind) internal view returns (uint256 sum) {
        Unbonding[] memory unbondings = stakes.unbondingsOf(pool, kind, account);
        for (uint256 i = 0; i < unbondings.length; ++i) {
            if (unbondings[i].availableAt <= block.timestamp) sum += unbondings[i].amount;
        }
    }

    /// Sum of what the open cases against a contributor hold.
    function openOf(address who) internal view returns (uint256 sum) {
        for (uint256 i = 0; i < cases.length; ++i) {
            bool isOpen = court.getCase(cases[i].accused).state == CaseState.Locked;
            if (isOpen && cases[i].accused.contributor == who) sum += cases[i].amount;
        }
    }
}
