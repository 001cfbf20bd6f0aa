// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochLedger} from "../../contracts/EpochLedger.sol";
import {NodeRegistry} from "../../contracts/NodeRegistry.sol";
import {PolicyRegistry} from "../../contracts/PolicyRegistry.sol";
import {PoolRegistry} from "../../contracts/PoolRegistry.sol";
import {SlashingCourt} from "../../contracts/SlashingCourt.sol";
import {StakeManager} from "../../contracts/StakeManager.sol";
import {TestToken} from "../../contracts/devnet/TestToken.sol";
import {Attestation, EpochHeader, Receipt, Verdict} from "../../contracts/interfaces/ICoveyTypes.sol";
import {EpochRecord} from "../../contracts/interfaces/IEpochLedger.sol";
import {PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {Accusation, Finding} from "../../contracts/interfaces/ISlashingCourt.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";

interface Vm {
    function addr(uint256 key) external pure returns (address);
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function prank(address sender) external;
    function warp(uint256 timestamp) external;
    function getNonce(address account) external view returns (uint64);
    function deal(address account, uint256 balance) external;
    function expectRevert(bytes calldata reason) external;
    function expectRevert() external;
    function expectEmit() external;
}

/// Deploys all contracts and one active pool. Its windows are 10 s (challenge), 10 s (veto) and 20 s (unbonding), and
/// its epochs are at least 1 s apart. A unit costs 3, a case takes 60. Three validators have a bond of 20 each and a
/// quorum of two; a vetoed case costs a signer 15. The escrow holds 1,000,000, the operator's bond is 1,000, and the
/// contributor has staked 100 and registered its node.
abstract contract Fixture {
    Vm internal constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));

    uint256 internal constant OPERATOR_KEY = 0x0A;
    uint256 internal constant CONTRIBUTOR_KEY = 0x0C;
    uint256 internal constant NODE_KEY = 0x0D;
    uint256 internal constant STRANGER_KEY = 0x0E;
    uint256 internal constant START = 1_700_000_000;
    string internal constant PARAMS = '{"name":"test"}';

    address internal operator = vm.addr(OPERATOR_KEY);
    address internal contributor = vm.addr(CONTRIBUTOR_KEY);
    address internal node = vm.addr(NODE_KEY);
    address internal stranger = vm.addr(STRANGER_KEY);
    address internal trainer = vm.addr(0x7A);
    address internal arbiter = vm.addr(0x7B);
    address internal admin = vm.addr(0x7C);
    uint256[] internal validatorKeys;
    address[] internal validators;
    Attestation[] internal none;

    TestToken internal token;
    PoolRegistry internal pools;
    NodeRegistry internal nodes;
    PolicyRegistry internal policies;
    StakeManager internal stakes;
    EpochLedger internal ledger;
    SlashingCourt internal court;
    uint256 internal pool;

    function setUp() public virtual {
        vm.warp(START);
        token = new TestToken();
        deploy();
        makeValidators();
        pool = makePool(makeTerms());
        give(operator, pool, 1_000_000);
        bond(operator, BondKind.OPERATOR, 1000);
        bond(contributor, BondKind.CONTRIBUTOR, 100);
        for (uint256 i = 0; i < 3; ++i) {
            bond(validators[i], BondKind.VALIDATOR, 20);
        }
        registerNode(contributor, CONTRIBUTOR_KEY);
    }

    function deploy() internal {
        pools = new PoolRegistry(admin);
        nodes = new NodeRegistry(pools);
        policies = new PolicyRegistry(pools);
        uint256 nonce = vm.getNonce(address(this));
        stakes = new StakeManager(pools, predict(nonce + 1), predict(nonce + 2));
        ledger = new EpochLedger(pools, nodes, stakes);
        court = new SlashingCourt(pools, nodes, stakes);
    }

    /// Address of the contract that this one creates with a given nonce below 128.
    function predict(uint256 nonce) internal view returns (address) {
        return address(uint160(uint256(keccak256(abi.encodePacked(hex"d694", address(this), uint8(nonce))))));
    }

    function makePool(PoolTerms memory terms) internal returns (uint256 created) {
        vm.prank(operator);
        created = pools.createPool(terms, validators, PARAMS);
        vm.prank(operator);
        pools.startPool(created);
    }

    function makeTerms() internal view virtual returns (PoolTerms memory) {
        return PoolTerms({
            epochUnits: 1_000_000,
            challengeWindow: 10,
            vetoWindow: 10,
            unbondWindow: 20,
            epochLength: 1,
            validatorBond: 20,
            headerQuorum: 0,
            slashAmount: 60,
            verdictFee: 0,
            epochVerdicts: 0,
            maxSlashes: 4,
            lightSlashBps: 10_000,
            strikes: 0,
            quorum: 2,
            isInviteOnly: false,
            arbiter: arbiter,
            signerPenalty: 15,
            token: address(token),
            minStake: 100,
            trainer: trainer,
            acceptPenalty: 20,
            signer: operator,
            rewardPerMillion: 3_000_000,
            heir: address(0),
            paramsHash: keccak256(bytes(PARAMS))
        });
    }

    /// Three keys in ascending order of their addresses, as the court requires.
    function makeValidators() internal {
        uint256[3] memory keys = [uint256(0x51), 0x52, 0x53];
        for (uint256 i = 0; i < 3; ++i) {
            for (uint256 j = i + 1; j < 3; ++j) {
                if (vm.addr(keys[j]) < vm.addr(keys[i])) (keys[i], keys[j]) = (keys[j], keys[i]);
            }
            validatorKeys.push(keys[i]);
            validators.push(vm.addr(keys[i]));
        }
    }

    function give(address payer, uint256 to, uint256 amount) internal {
        token.mint(payer, amount);
        vm.prank(payer);
        token.approve(address(ledger), amount);
        vm.prank(payer);
        ledger.fundPool(to, amount);
    }

    function bond(address account, BondKind kind, uint256 amount) internal {
        bondIn(pool, account, kind, amount);
    }

    function bondIn(uint256 to, address account, BondKind kind, uint256 amount) internal {
        token.mint(account, amount);
        vm.prank(account);
        token.approve(address(stakes), amount);
        vm.prank(account);
        stakes.stake(to, kind, amount);
    }

    function registerNode(address who, uint256 whoKey) internal {
        bytes32 digest = nodes.digestRegistration(pool, who, node, nodes.nonceOf(node), START + 60);
        nodes.registerNode(pool, who, node, START + 60, sign(whoKey, digest), sign(NODE_KEY, digest));
    }

    /// The next header that the operator can post.
    function makeHeader(bytes32 workRoot, bytes32 rewardRoot, uint64 units) internal view returns (EpochHeader memory) {
        bytes32 dataHash = keccak256("data");
        return EpochHeader(
            pool, ledger.epochsOf(pool), workRoot, rewardRoot, 2, units, 0, dataHash, ledger.headOf(pool)
        );
    }

    function attest(EpochHeader memory header, uint256 key) internal view returns (Attestation memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, ledger.digestHeader(header));
        return Attestation(r, bytes32(uint256(s) | (uint256(v - 27) << 255)));
    }

    function postHeader(EpochHeader memory header) internal returns (EpochRecord memory record) {
        record = makeRecord(header);
        vm.prank(operator);
        ledger.post(header, none);
    }

    /// Record of a header that is posted now.
    function makeRecord(EpochHeader memory header) internal view returns (EpochRecord memory) {
        uint96 reward = uint96(header.units) * 3;
        return EpochRecord({
            headerHash: ledger.hashHeader(header),
            rewardRoot: header.rewardRoot,
            epoch: header.epoch,
            finalAt: uint64(block.timestamp + 20),
            reward: reward,
            cumulative: ledger.getSettlement(pool).posted + reward
        });
    }

    function post(bytes32 rewardRoot, uint64 units) internal returns (EpochRecord memory) {
        return postHeader(makeHeader(keccak256("work"), rewardRoot, units));
    }

    function unbond(uint256 amount) internal {
        vm.prank(contributor);
        stakes.unbond(pool, BondKind.CONTRIBUTOR, amount);
    }

    function withdraw() internal {
        vm.prank(contributor);
        stakes.withdraw(pool, BondKind.CONTRIBUTOR);
    }

    function sign(uint256 key, bytes32 digest) internal pure returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digest);
        return abi.encodePacked(r, s, v);
    }

    function makeReceipt(uint256 task, bytes32 workKey) internal view returns (Receipt memory) {
        return Receipt({
            pool: pool,
            task: task,
            lease: 9,
            node: node,
            contributor: contributor,
            policyVersion: 4,
            workKey: workKey,
            groups: 2,
            units: 50,
            deadline: uint64(START + 100)
        });
    }

    function makeVerdict(Receipt memory receipt, uint256 i) internal view returns (Verdict memory) {
        return Verdict({
            pool: receipt.pool,
            receiptHash: court.hashReceipt(receipt),
            workKey: receipt.workKey,
            validator: validators[i],
            outcome: 2,
            reason: 7,
            severity: 2,
            units: 0,
            evidenceHash: keccak256("evidence"),
            deadline: uint64(START + 500)
        });
    }

    function signReceipt(Receipt memory receipt) internal view returns (bytes memory) {
        return sign(NODE_KEY, court.digestReceipt(receipt));
    }

    function makeFinding(Verdict memory verdict, uint256 key) internal view returns (Finding memory) {
        bytes memory signature = sign(key, court.digestVerdict(verdict));
        return Finding(verdict.validator, verdict.deadline, verdict.units, verdict.evidenceHash, signature);
    }

    /// Findings of the first `count` validators.
    function makeFindings(Receipt memory receipt, uint256 count) internal view returns (Finding[] memory findings) {
        findings = new Finding[](count);
        for (uint256 i = 0; i < count; ++i) {
            findings[i] = makeFinding(makeVerdict(receipt, i), validatorKeys[i]);
        }
    }

    function accuse(Receipt memory receipt) internal view returns (Accusation memory) {
        return Accusation(court.hashReceipt(receipt), receipt.pool, receipt.node, receipt.contributor);
    }

    function openCase(uint256 task) internal returns (Accusation memory) {
        Receipt memory receipt = makeReceipt(task, keccak256(abi.encode(task)));
        court.propose(receipt, signReceipt(receipt), 7, makeFindings(receipt, 2));
        return accuse(receipt);
    }

    function stakeOf(address account) internal view returns (uint256) {
        return stakes.stakeOf(pool, BondKind.CONTRIBUTOR, account);
    }

    function assertEq(uint256 actual, uint256 expected) internal pure {
        require(actual == expected, string.concat(text(actual), " is not ", text(expected)));
    }

    function assertEq(address actual, address expected) internal pure {
        require(actual == expected, "addresses differ");
    }

    function assertEq(bytes32 actual, bytes32 expected) internal pure {
        require(actual == expected, "hashes differ");
    }

    function assertTrue(bool actual) internal pure {
        require(actual, "not true");
    }

    function bound(uint256 value, uint256 low, uint256 high) internal pure returns (uint256) {
        return low + value % (high - low + 1);
    }

    function text(uint256 value) private pure returns (string memory) {
        if (value < 10) return string(abi.encodePacked(uint8(48 + value)));
        return string.concat(text(value / 10), text(value % 10));
    }
}
