// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Attestation, EpochHeader, Receipt, WorkLeaf} from "../../../contracts/interfaces/ICoveyTypes.sol";
import {ChallengeState, EpochRecord, Inclusion, InclusionPromise} from "../../../contracts/interfaces/IEpochLedger.sol";
import {PoolState, PoolTerms} from "../../../contracts/interfaces/IPoolRegistry.sol";
import {BondKind} from "../../../contracts/interfaces/IStakeManager.sol";
import {FuzzSelector} from "./Fuzzed.sol";
import {LedgerModel} from "./LedgerModel.sol";

/// Calls EpochLedger as random funders, operators, arbiters, claimers and challengers, also with requests that must be
/// refused. `broken` names a rule that was violated.
contract LedgerHandler is LedgerModel {
    /// What decides whether a post may succeed.
    struct Attempt {
        uint256 room;
        uint256 idleFrom;
        uint256 signers;
    }

    constructor() {
        super.setUp();
        PoolTerms memory terms = makeTerms();
        (terms.headerQuorum, terms.verdictFee, terms.epochVerdicts) = (2, 7, 10);
        both = [pool, makePool(terms)];
        bondIn(both[1], validators[0], BondKind.VALIDATOR, 20);
        bondIn(both[1], validators[1], BondKind.VALIDATOR, 20);
        payees = [contributor, vm.addr(0x1C)];
        give(operator, both[1], 10_000);
        (funded[both[0]], funded[both[1]]) = (1_000_000, 10_000);
        vm.deal(stranger, 1 ether);
        vm.deal(address(token), 1 ether);
    }

    receive() external payable {}

    function fund(uint256 which, uint256 amount) external {
        if (!pools.isOpen(both[which % 2])) return;
        amount = bound(amount, 1, 1000);
        give(stranger, both[which % 2], amount);
        funded[both[which % 2]] += amount;
    }

    function post(uint256 which, uint256 units, uint256 share, uint256 task, bool isOperator) external {
        uint256 to = both[which % 2];
        units = bound(units, 0, 3000);
        uint256[2] memory promised = promisedNow[to];
        promised[0] += bound(share, 0, units * 3);
        promised[1] += which % 2 == 0 ? units * 3 - bound(share, 0, units * 3) : bound(task, 0, 30_000);
        EpochHeader memory header = makeNext(to, promised, uint64(units), task % (TASKS + 1));
        if (which % 2 == 1) header.verdicts = uint32(share % 12);
        Attempt memory attempt = Attempt({
            room: funded[to] - refunded[to] - standingOf(to),
            idleFrom: idleFromOf(to),
            signers: which % 2 == 1 ? share % 3 : 0
        });
        EpochRecord memory record = makeRecordOf(header);
        Attestation[] memory attestations = attestBy(header, attempt.signers);
        vm.prank(isOperator ? operator : arbiter);
        try ledger.post(header, attestations) {
            checkPost(header, attempt, isOperator);
            noteHeader(header);
            epochs.push(Epoch(to, record, header, false, promised, promisedNow[to], task % (TASKS + 1)));
            promisedNow[to] = promised;
        } catch {}
    }

    function checkPost(EpochHeader memory header, Attempt memory attempt, bool isOperator) internal {
        bool isSecond = header.pool == both[1];
        bool isIdle = isSecond && block.timestamp >= attempt.idleFrom;
        if (!isOperator && !isIdle) broken = "an account other than the operator posted";
        if (isSecond && attempt.signers < 2) broken = "posted without a quorum";
        if (header.verdicts > 10) broken = "paid for too many verdicts";
        if (block.timestamp >= pools.closesAt(header.pool)) broken = "posted to a closed pool";
        if (rewardOf(header) > attempt.room) broken = "posted more than the escrow holds";
    }

    function disable(uint256 which, bool isArbiter) external {
        if (epochs.length == 0) return;
        which %= epochs.length;
        EpochRecord memory record = epochs[which].record;
        vm.prank(isArbiter ? arbiter : operator);
        try ledger.disableEpoch(epochs[which].pool, record, true) {
            if (!isArbiter || block.timestamp >= record.finalAt - 10) broken = "disabled without right or too late";
            noteDisabled(which);
        } catch {}
    }

    function claim(uint256 which, uint256 who, uint256 extra, bool isElsewhere) external {
        if (epochs.length == 0) return;
        Epoch memory epoch = epochs[which % epochs.length];
        address payee = payees[who % 2];
        uint256 amount = epoch.promised[who % 2] + (extra % 4 == 0 ? 1 : 0);
        uint256 to = isElsewhere ? both[0] + both[1] - epoch.pool : epoch.pool;
        uint256 held = token.balanceOf(payee);
        uint256 deduction = ledger.deductionOf(to, payee);
        bytes32[] memory proof = proofOf(epoch, who % 2);
        vm.prank(stranger);
        try ledger.claim(to, epoch.record, payee, amount, proof) {
            uint256 deducted = deduction - ledger.deductionOf(to, payee);
            uint256 gained = token.balanceOf(payee) - held + deducted;
            if (epoch.isDisabled) broken = "claimed against a disabled root";
            if (block.timestamp < epoch.record.finalAt) broken = "claimed before the epoch was final";
            if (extra % 4 == 0 || isElsewhere) broken = "claimed what no leaf contains";
            if (gained == 0 || gained != amount - paidTo[to][payee]) broken = "claimed twice";
            paidTo[to][payee] += gained;
            paid[to] += gained;
            funded[to] += deducted;
        } catch {}
    }

    function end(uint256 which) external {
        vm.prank(operator);
        try pools.endPool(both[which % 2]) {} catch {}
    }

    function refund(uint256 which) external {
        uint256 to = both[which % 2];
        uint256 held = token.balanceOf(operator);
        vm.prank(operator);
        try ledger.refundPool(to) {
            bool isClosed = pools.stateOf(to) == PoolState.Ended && block.timestamp >= pools.closesAt(to);
            if (!isClosed) broken = "refunded too early";
            refunded[to] += token.balanceOf(operator) - held;
        } catch {}
    }

    function challenge(uint256 task, uint256 latest) external {
        (Receipt memory receipt,) = makeTask(task % TASKS);
        bytes32 receiptHash = court.hashReceipt(receipt);
        uint64 signedAt = uint64(block.timestamp - 40);
        uint64 dueBy = uint64(block.timestamp - 20 + latest % 4 * 10);
        bytes memory given = sign(OPERATOR_KEY, ledger.digestCountersignature(receiptHash, signedAt, dueBy));
        bytes memory signature = sign(latest % 5 == 0 ? STRANGER_KEY : NODE_KEY, court.digestReceipt(receipt));
        bool isDue = isOverdue(dueBy);
        ChallengeState state = stateOf(task % TASKS);
        bool hasFallen = state == ChallengeState.Answered && epochs[answeredBy[task % TASKS]].isDisabled;
        // The token contract refuses ether. Such a challenger must not block anyone.
        vm.prank(task % 2 == 0 ? stranger : address(token));
        try ledger.challengeOmission{value: BOND}(receipt, signature, InclusionPromise(signedAt, dueBy, given)) {
            if (latest % 5 == 0) broken = "challenged without the node";
            if (!isDue) broken = "challenged before it was due";
            if (state != ChallengeState.None && !hasFallen) broken = "a receipt was challenged twice";
            ++openChallenges;
        } catch {}
    }

    function answer(uint256 task, uint256 which) external {
        if (epochs.length == 0) return;
        Epoch memory epoch = epochs[which % epochs.length];
        (Receipt memory receipt, WorkLeaf memory leaf) = makeTask(task % TASKS);
        bool isShown = epoch.pool == pool && !epoch.isDisabled && epoch.task == task % TASKS;
        Inclusion[] memory shown = new Inclusion[](1);
        shown[0] = Inclusion(receipt, leaf, new bytes32[](0));
        ChallengeState state = stateOf(task % TASKS);
        uint256 deduction = ledger.deductionOf(pool, contributor);
        try ledger.answerOmissions(epoch.record, epoch.header, shown) {
            if (!isShown) broken = "answered with an epoch that does not include the receipt";
            if (state == ChallengeState.Upheld) {
                uint256 added = ledger.deductionOf(pool, contributor) - deduction;
                if (added > 150 || isNetted[task % TASKS]) broken = "deducted more than the bond has paid";
                if (block.timestamp < epoch.record.finalAt) broken = "deducted for an epoch that may be disabled";
                isNetted[task % TASKS] = true;
            } else {
                --openChallenges;
            }
            answeredBy[task % TASKS] = which % epochs.length;
        } catch {}
    }

    function resolve(uint256 task) external {
        (Receipt memory receipt,) = makeTask(task % TASKS);
        ChallengeState state = stateOf(task % TASKS);
        bool isDue = state == ChallengeState.Open
            && block.timestamp >= ledger.getChallenge(court.hashReceipt(receipt)).answerBy;
        uint256 held = token.balanceOf(contributor);
        try ledger.resolveOmission(receipt) {
            uint256 gained = token.balanceOf(contributor) - held;
            paidTo[0][contributor] += gained;
            if (ledger.getChallenge(court.hashReceipt(receipt)).paid > 150) broken = "the bond paid more than was due";
            if (state == ChallengeState.Upheld) {
                if (gained == 0) broken = "resolved again for nothing";
                return;
            }
            if (!isDue) broken = "resolved before the window closed";
            --openChallenges;
            ++credits;
        } catch {
            if (isDue) broken = "an unanswered challenge was not resolved";
        }
    }

    function collect() external {
        uint256 due = ledger.etherOf(stranger);
        uint256 held = stranger.balance;
        vm.prank(stranger);
        try ledger.withdrawEther() {
            if (due == 0 || stranger.balance - held != due) broken = "withdrew another amount of ether than was due";
            credits -= due / BOND;
        } catch {
            if (due > 0) broken = "ether that was due was not paid";
        }
    }

    function wait(uint256 time) external {
        vm.warp(block.timestamp + (time % 16 == 15 ? 120 : time % 8));
    }

    /// Rules that hold at any time.
    function check() external view {
        require(bytes(broken).length == 0, broken);
        uint256 held = 0;
        for (uint256 i = 0; i < 2; ++i) {
            uint256 of_ = both[i];
            uint256 escrow = funded[of_] - refunded[of_] - paid[of_];
            held += escrow;
            require(ledger.escrowOf(of_) == escrow, "escrow is not conserved");
            require(ledger.owedOf(of_) == standingOf(of_) - paid[of_], "the owed amount differs");
            require(ledger.owedOf(of_) <= escrow, "more owed than the escrow holds");
            require(paid[of_] <= finalOf(of_), "paid beyond the final epochs");
            require(ledger.headOf(of_) == head[of_] && ledger.epochsOf(of_) == count[of_], "head or count differs");
            for (uint256 j = 0; j < 2; ++j) {
                require(ledger.claimedOf(of_, payees[j]) == paidTo[of_][payees[j]], "claims and payments differ");
            }
        }
        require(token.balanceOf(address(ledger)) == held, "rewards are not solvent");
        require(address(ledger).balance == (openChallenges + credits) * BOND, "bonds are not solvent");
    }

    /// Whatever happened before, the contributors of the first pool receive everything that its valid epochs promise
    /// them. This holds without anyone's permission, while the registry is paused, and whatever the other pool
    /// promised.
    function leave() external {
        vm.warp(block.timestamp + 1 days);
        vm.prank(admin);
        pools.pause();
        for (uint256 i = epochs.length; i > 0; --i) {
            Epoch memory epoch = epochs[i - 1];
            if (epoch.pool != pool || epoch.isDisabled) continue;
            for (uint256 j = 0; j < 2; ++j) {
                if (epoch.promised[j] <= paidTo[pool][payees[j]]) continue;
                ledger.claim(pool, epoch.record, payees[j], epoch.promised[j], proofOf(epoch, j));
            }
            break;
        }
        require(ledger.owedOf(pool) == 0, "a final reward was not paid");
    }

    function makeNext(uint256 to, uint256[2] memory promised, uint64 units, uint256 task)
        internal
        view
        returns (EpochHeader memory)
    {
        (, WorkLeaf memory leaf) = makeTask(task);
        bytes32 workRoot = ledger.hashWorkLeaf(leaf);
        return EpochHeader(
            to, uint64(count[to]), workRoot, rootOf(to, promised), 1, units, 0, keccak256("data"), head[to]
        );
    }

    function makeRecordOf(EpochHeader memory header) internal view returns (EpochRecord memory) {
        uint96 reward = uint96(rewardOf(header));
        uint96 cumulative = uint96(standingOf(header.pool)) + reward;
        uint64 finalAt = uint64(block.timestamp + 20);
        return EpochRecord(ledger.hashHeader(header), header.rewardRoot, header.epoch, finalAt, reward, cumulative);
    }
}

/// Rewards are solvent, claims are monotone and never exceed the final epochs, and a final reward can always be
/// claimed.
contract LedgerInvariants {
    LedgerHandler internal handler;

    function setUp() public {
        handler = new LedgerHandler();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function targetSelectors() public view returns (FuzzSelector[] memory targets) {
        bytes4[] memory selectors = new bytes4[](13);
        // Listed twice to be called more often, because all other actions depend on them.
        (selectors[0], selectors[1]) = (LedgerHandler.post.selector, LedgerHandler.post.selector);
        (selectors[2], selectors[3]) = (LedgerHandler.claim.selector, LedgerHandler.claim.selector);
        selectors[4] = LedgerHandler.fund.selector;
        selectors[5] = LedgerHandler.disable.selector;
        selectors[6] = LedgerHandler.end.selector;
        selectors[7] = LedgerHandler.refund.selector;
        selectors[8] = LedgerHandler.challenge.selector;
        selectors[9] = LedgerHandler.answer.selector;
        selectors[10] = LedgerHandler.resolve.selector;
        selectors[11] = LedgerHandler.wait.selector;
        selectors[12] = LedgerHandler.collect.selector;
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(handler), selectors);
    }

    function invariant_RewardsAreSolventMonotoneAndFinal() public view {
        handler.check();
    }

    function afterInvariant() public {
        handler.leave();
    }
}
