// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt} from "../../../contracts/interfaces/ICoveyTypes.sol";
import {Accusation, CaseState, Finding} from "../../../contracts/interfaces/ISlashingCourt.sol";
import {BondKind, Exposure} from "../../../contracts/interfaces/IStakeManager.sol";
import {FuzzSelector} from "./Fuzzed.sol";
import {StakeModel} from "./StakeModel.sol";

/// Calls StakeManager and SlashingCourt as random stakers, validators, arbiters and strangers, also with requests that
/// must be refused. `broken` names a rule that was violated.
contract StakeHandler is StakeModel {
    function stake(uint256 who, uint256 which, uint256 amount) external {
        (address account, uint256 kind) = choose(who, which);
        amount = bound(amount, 1, 60);
        token.mint(account, amount);
        minted += amount;
        vm.prank(account);
        token.approve(address(stakes), amount);
        vm.prank(account);
        try stakes.stake(pool, BondKind(kind % 3), amount) {
            if (pools.paused() && kind % 3 == uint256(BondKind.CONTRIBUTOR)) broken = "staked while paused";
        } catch {
            vm.prank(account);
            token.transfer(address(0xBEEF), amount);
            minted -= amount;
        }
    }

    function unbond(uint256 who, uint256 which, uint256 amount) external {
        (address account, uint256 kind) = choose(who, which);
        uint256 bonded = stakes.stakeOf(pool, BondKind(kind % 3), account);
        amount = bound(amount, 1, bonded + 1);
        vm.prank(account);
        try stakes.unbond(pool, BondKind(kind % 3), amount) {
            if (amount > bonded) broken = "unbonded more than was bonded";
            if (!isOwner(account, BondKind(kind % 3))) broken = "a stranger unbonded the operator's bond";
        } catch {
            bool isFull = stakes.unbondingsOf(pool, BondKind(kind % 3), account).length == 16;
            if (amount <= bonded && !isFull && isOwner(account, BondKind(kind % 3))) broken = "bonded stake could not be unbonded";
        }
    }

    function withdraw(uint256 who, uint256 which) external {
        (address account, uint256 kind) = choose(who, which);
        BondKind bondKind = BondKind(kind % 3);
        uint256 held = token.balanceOf(account);
        bool isLocked = bondKind == BondKind.CONTRIBUTOR && stakes.lockedOf(pool, account) > 0;
        uint256 due = maturedOf(account, bondKind);
        vm.prank(account);
        try stakes.withdraw(pool, bondKind) {
            if (isLocked) broken = "withdrawn while a slash is pending";
            if (bondKind == BondKind.OPERATOR) broken = "the operator's bond left an open pool";
            if (token.balanceOf(account) - held != due) broken = "withdrew another amount than had matured";
            withdrawn[account] += due;
        } catch {
            if (due > 0 && !isLocked && bondKind != BondKind.OPERATOR) broken = "matured stake was held back";
        }
    }

    function propose(uint256 who, uint256 task, uint256 signers, uint256 lateBy) external {
        Receipt memory receipt = makeReceiptOf(who % 2, task % 6);
        (Finding[] memory findings, bool isLawful) = makeFindingsOf(receipt, signers, lateBy % 4 == 0);
        Accusation memory accused = accuse(receipt);
        uint256 free = totalOf(receipt.contributor, BondKind.CONTRIBUTOR)
            - stakes.lockedOf(pool, receipt.contributor);
        bytes memory signature = sign(nodeKeys[who % 2], court.digestReceipt(receipt));
        vm.prank(stranger);
        try court.propose(receipt, signature, 7, findings) {
            uint256 amount = court.getCase(accused).amount;
            if (judged[accused.receiptHash]) broken = "a receipt counted twice";
            if (!isLawful) broken = "a case was opened without a valid quorum";
            if (amount > free) broken = "more locked than was free";
            noteLock(receipt.contributor, amount, 60);
            judged[accused.receiptHash] = true;
            cases.push(Opened(accused, receipt, amount, block.timestamp / 20));
        } catch {}
    }

    function veto(uint256 which, bool isArbiter) external {
        if (cases.length == 0) return;
        Opened storage open = cases[which % cases.length];
        bool isInTime = block.timestamp < court.getCase(open.accused).vetoUntil;
        vm.prank(isArbiter ? arbiter : operator);
        try court.veto(open.accused) {
            if (!isArbiter || !isInTime) broken = "vetoed without right or too late";
            noteRelease(open);
        } catch {}
    }

    function execute(uint256 which) external {
        if (cases.length == 0) return;
        Opened storage open = cases[which % cases.length];
        address accused = open.accused.contributor;
        uint256 total = totalOf(accused, BondKind.CONTRIBUTOR);
        uint256 vetoUntil = court.getCase(open.accused).vetoUntil;
        bool isInTime = block.timestamp >= vetoUntil && block.timestamp < vetoUntil + 1 days;
        bool isOpen = court.getCase(open.accused).state == CaseState.Locked;
        vm.prank(stranger);
        try court.execute(open.accused) {
            if (!isInTime || !isOpen) broken = "executed outside its window";
            if (total - totalOf(accused, BondKind.CONTRIBUTOR) != open.amount) broken = "burned another amount";
        } catch {
            if (isInTime && isOpen) broken = "a due slash was refused";
        }
    }

    function lapse(uint256 which) external {
        if (cases.length == 0) return;
        Opened storage open = cases[which % cases.length];
        bool isDue = court.getCase(open.accused).state == CaseState.Locked
            && block.timestamp >= uint256(court.getCase(open.accused).vetoUntil) + 1 days;
        vm.prank(stranger);
        try court.lapse(open.accused) {
            if (!isDue) broken = "lapsed before its time";
            noteRelease(open);
        } catch {
            if (isDue) broken = "a case that was due did not lapse";
        }
    }

    function slashSigner(uint256 which, uint256 signer) external {
        if (cases.length == 0) return;
        Opened storage open = cases[which % cases.length];
        address validator = accounts[signer % 5];
        Finding memory finding = makeFindingOf(open.receipt, signer % 5, uint64(START + 10 ** 9));
        uint256 total = totalOf(validator, BondKind.VALIDATOR);
        bool isVetoed = court.getCase(open.accused).state == CaseState.Vetoed;
        vm.prank(stranger);
        try court.slashSigner(open.accused, open.receipt.workKey, finding) {
            uint256 taken = total - totalOf(validator, BondKind.VALIDATOR);
            if (!isVetoed || taken > 15) broken = "a signer paid without cause or too much";
            penalties += taken;
        } catch {}
    }

    function equivocate(uint256 who, uint256 task) external {
        Receipt memory a = makeReceiptOf(who % 2, task % 6);
        Receipt memory b = makeReceiptOf(who % 2, task % 6);
        b.workKey = keccak256("second file");
        bytes memory first = sign(nodeKeys[who % 2], court.digestReceipt(a));
        bytes memory second = sign(nodeKeys[who % 2], court.digestReceipt(b));
        bytes32 slot = keccak256(abi.encode(a.task, a.node));
        uint256 total = totalOf(a.contributor, BondKind.CONTRIBUTOR);
        vm.prank(stranger);
        try court.slashForEquivocation(a, first, b, second) {
            if (equivocated[slot]) broken = "equivocation slashed twice";
            equivocated[slot] = true;
            noteLock(a.contributor, total - totalOf(a.contributor, BondKind.CONTRIBUTOR), 60);
        } catch {}
    }

    function replaceValidator(uint256 from, uint256 to) external {
        address previous = accounts[from % 5];
        address current = accounts[to % 5];
        vm.prank(operator);
        try pools.replaceValidator(pool, previous, current) {
            powerFrom[previous] = 0;
            powerFrom[current] = block.timestamp + 40;
        } catch {}
    }

    function pause(bool on) public {
        if (on == pools.paused()) return;
        vm.prank(admin);
        on ? pools.pause() : pools.unpause();
    }

    function wait(uint256 time) external {
        uint256 jump = time % 3 == 0 ? 20 : time % 13;
        vm.warp(block.timestamp + (time % 16 == 15 ? 1 days : jump));
    }

    /// Rules that hold at any time.
    function check() external view {
        require(bytes(broken).length == 0, broken);
        uint256 held = 0;
        uint256 gone = token.balanceOf(stakes.BURN());
        for (uint256 i = 0; i < accounts.length; ++i) {
            for (uint256 kind = 0; kind < 3; ++kind) {
                held += totalOf(accounts[i], BondKind(kind));
                require(leavingOf(accounts[i], BondKind(kind)) == sumOf(accounts[i], BondKind(kind)), "leaving stake");
            }
            gone += withdrawn[accounts[i]];
            require(token.balanceOf(accounts[i]) == withdrawn[accounts[i]], "an account earned by slashing");
        }
        require(token.balanceOf(address(stakes)) == held, "stake is not solvent");
        require(held + gone == minted, "stake is not conserved");
        require(token.balanceOf(arbiter) == 0 && token.balanceOf(admin) == 0, "arbiter or admin earned by slashing");
        for (uint256 i = 0; i < 2; ++i) {
            address who = accounts[5 + i];
            require(openOf(who) == stakes.lockedOf(pool, who), "locks and cases differ");
            require(stakes.lockedOf(pool, who) <= totalOf(who, BondKind.CONTRIBUTOR), "more locked than staked");
            Exposure memory exposure = stakes.getExposure(pool, who);
            require(exposure.taken == lockedIn[exposure.takenIn][who], "the use of the cap differs");
        }
    }

    /// Whatever happened before, every account withdraws all of its remaining stake, while the registry is paused and
    /// without anyone's permission.
    function leave() external {
        vm.warp(block.timestamp + 2 days);
        for (uint256 i = 0; i < cases.length; ++i) {
            if (court.getCase(cases[i].accused).state == CaseState.Locked) court.lapse(cases[i].accused);
        }
        if (!pools.paused()) pause(true);
        vm.prank(operator);
        pools.endPool(pool);
        for (uint256 round = 0; round < 2; ++round) {
            for (uint256 i = 0; i < accounts.length; ++i) {
                for (uint256 kind = 0; kind < 3; ++kind) {
                    exit(accounts[i], BondKind(kind));
                }
            }
            vm.warp(block.timestamp + 120);
        }
        require(token.balanceOf(address(stakes)) == 0, "stake was left in the contract");
    }

    function exit(address account, BondKind kind) internal {
        if (!isOwner(account, kind)) return;
        if (maturedOf(account, kind) > 0 && (kind != BondKind.OPERATOR || block.timestamp >= pools.closesAt(pool))) {
            vm.prank(account);
            stakes.withdraw(pool, kind);
        }
        uint256 bonded = stakes.stakeOf(pool, kind, account);
        if (bonded == 0) return;
        vm.prank(account);
        stakes.unbond(pool, kind, bonded);
    }
}

/// Stake is solvent and conserved, slashes are capped and follow the rules, and every account can always leave.
contract StakeInvariants {
    StakeHandler internal handler;

    function setUp() public {
        handler = new StakeHandler();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function targetSelectors() public view returns (FuzzSelector[] memory targets) {
        bytes4[] memory selectors = new bytes4[](12);
        selectors[0] = StakeHandler.stake.selector;
        selectors[1] = StakeHandler.unbond.selector;
        selectors[2] = StakeHandler.withdraw.selector;
        selectors[3] = StakeHandler.propose.selector;
        selectors[4] = StakeHandler.veto.selector;
        selectors[5] = StakeHandler.execute.selector;
        selectors[6] = StakeHandler.lapse.selector;
        selectors[7] = StakeHandler.slashSigner.selector;
        selectors[8] = StakeHandler.equivocate.selector;
        selectors[9] = StakeHandler.replaceValidator.selector;
        selectors[10] = StakeHandler.wait.selector;
        selectors[11] = StakeHandler.pause.selector;
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(handler), selectors);
    }

    function invariant_StakeIsSolventConservedAndLawfullySlashed() public view {
        handler.check();
    }

    function afterInvariant() public {
        handler.leave();
    }
}
