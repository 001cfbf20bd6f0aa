// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochLedger} from "../../contracts/EpochLedger.sol";
import {NodeRegistry} from "../../contracts/NodeRegistry.sol";
import {PolicyRegistry} from "../../contracts/PolicyRegistry.sol";
import {PoolRegistry} from "../../contracts/PoolRegistry.sol";
import {SlashingCourt} from "../../contracts/SlashingCourt.sol";
import {StakeManager} from "../../contracts/StakeManager.sol";
import {TestToken} from "../../contracts/devnet/TestToken.sol";
import {Receipt, Verdict} from "../../contracts/interfaces/ICoveyTypes.sol";
import {PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";

interface Vm {
    function addr(uint256 key) external pure returns (address);
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function prank(address sender) external;
    function warp(uint256 timestamp) external;
    function deal(address account, uint256 balance) external;
    function expectRevert(bytes calldata reason) external;
    function expectRevert() external;
    function expectEmit() external;
}

/// All contracts, wired, and one active pool: windows 10 s (challenge), 10 s (veto), 20 s (unbond), price 3, slash 60,
/// three validators with a quorum of two, 1,000,000 in escrow, 100 staked by the contributor, its node registered.
abstract contract World {
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
    uint256[] internal validatorKeys;
    address[] internal validators;

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
        pools = new PoolRegistry(address(this));
        nodes = new NodeRegistry(pools);
        policies = new PolicyRegistry(pools);
        stakes = new StakeManager(pools, address(this));
        ledger = new EpochLedger(pools, stakes);
        court = new SlashingCourt(pools, nodes, stakes);
        pools.grantRole(pools.LEDGER_ROLE(), address(ledger));
        stakes.grantRole(stakes.LEDGER_ROLE(), address(ledger));
        stakes.grantRole(stakes.COURT_ROLE(), address(court));
        makeValidators();
        pool = makePool();
        give(operator, pool, 1_000_000);
        bond(contributor, BondKind.CONTRIBUTOR, 100);
        registerNode();
    }

    function makePool() internal returns (uint256 created) {
        vm.prank(operator);
        created = pools.createPool(makeTerms(), validators, PARAMS);
        vm.prank(operator);
        pools.startPool(created);
    }

    function makeTerms() internal view returns (PoolTerms memory) {
        return PoolTerms({
            trainer: trainer,
            arbiter: arbiter,
            token: address(token),
            paramsHash: keccak256(bytes(PARAMS)),
            rewardPerUnit: 3,
            minStake: 100,
            slashAmount: 60,
            quorum: 2,
            challengeWindow: 10,
            vetoWindow: 10,
            unbondWindow: 20
        });
    }

    /// Three keys whose addresses ascend, as the court wants them.
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
        token.approve(address(pools), amount);
        vm.prank(payer);
        pools.fundPool(to, amount);
    }

    function bond(address account, BondKind kind, uint256 amount) internal {
        token.mint(account, amount);
        vm.prank(account);
        token.approve(address(stakes), amount);
        vm.prank(account);
        stakes.stake(pool, kind, amount);
    }

    function registerNode() internal {
        bytes32 digest = nodes.digestRegistration(pool, contributor, node, nodes.nonceOf(node), START + 60);
        nodes.registerNode(
            pool, contributor, node, START + 60, sign(CONTRIBUTOR_KEY, digest), sign(NODE_KEY, digest)
        );
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

    /// Verdicts of the first `count` validators, and their signatures.
    function makeVerdicts(Receipt memory receipt, uint256 count)
        internal
        view
        returns (Verdict[] memory verdicts, bytes[] memory signatures)
    {
        verdicts = new Verdict[](count);
        for (uint256 i = 0; i < count; ++i) {
            verdicts[i] = makeVerdict(receipt, i);
        }
        signatures = signVerdicts(verdicts);
    }

    function signVerdicts(Verdict[] memory verdicts) internal view returns (bytes[] memory signatures) {
        signatures = new bytes[](verdicts.length);
        for (uint256 i = 0; i < verdicts.length; ++i) {
            signatures[i] = sign(validatorKeys[i], court.digestVerdict(verdicts[i]));
        }
    }

    function openCase(uint256 task) internal returns (uint256 caseId) {
        Receipt memory receipt = makeReceipt(task, keccak256(abi.encode(task)));
        (Verdict[] memory verdicts, bytes[] memory signatures) = makeVerdicts(receipt, 2);
        return court.propose(receipt, signReceipt(receipt), verdicts, signatures);
    }

    function assertEq(uint256 actual, uint256 expected) internal pure {
        require(actual == expected, string.concat(text(actual), " is not ", text(expected)));
    }

    function assertEq(address actual, address expected) internal pure {
        require(actual == expected, "another address");
    }

    function assertEq(bytes32 actual, bytes32 expected) internal pure {
        require(actual == expected, "another hash");
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
