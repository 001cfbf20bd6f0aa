// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {PoolRegistry} from "../../contracts/PoolRegistry.sol";
import {StakeManager} from "../../contracts/StakeManager.sol";
import {TestToken} from "../../contracts/devnet/TestToken.sol";
import {PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";

interface Vm {
    function assume(bool condition) external pure;
    function prank(address sender) external;
    function warp(uint256 timestamp) external;
    function deal(address account, uint256 balance) external;
    function addr(uint256 key) external pure returns (address);
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
}

/// One active pool without money, for properties that halmos proves. Its challenge and veto windows are 100 s each,
/// unbonding takes 200 s, and epochs are at least 4 s apart. A million units cost 3,000,000. A case takes 60, the first
/// one half of it, and two full ones are the cap.
abstract contract Setting {
    Vm internal constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));

    uint256 internal constant START = 1_700_000_000;
    uint24 internal constant CHALLENGE = 100;
    uint24 internal constant VETO = 100;
    uint24 internal constant UNBOND = 200;
    uint96 internal constant PRICE = 3_000_000;
    uint96 internal constant SLASH = 60;
    address internal constant OPERATOR = address(0xA1);
    address internal constant TRAINER = address(0xA2);
    address internal constant ARBITER = address(0xA3);
    address internal constant ADMIN = address(0xA4);
    address internal constant ALICE = address(0xC1);
    address internal constant BOB = address(0xC2);
    string internal constant PARAMS = "{}";

    TestToken internal token;
    PoolRegistry internal pools;
    StakeManager internal stakes;
    uint256 internal pool;
    address internal validator = address(0xD1);
    /// Zero for the operator.
    address internal signer;

    function setUp() public virtual {
        vm.warp(START);
        token = new TestToken();
        pools = new PoolRegistry(ADMIN);
        deployStakes();
        pool = makePool(makeTerms(SLASH));
    }

    /// Deploys the contracts that hold money.
    function deployStakes() internal virtual;

    function makePool(PoolTerms memory terms) internal returns (uint256 created) {
        address[] memory validators = new address[](1);
        validators[0] = validator;
        vm.prank(OPERATOR);
        created = pools.createPool(terms, validators, PARAMS);
        vm.prank(OPERATOR);
        pools.startPool(created);
    }

    function makeTerms(uint96 slashAmount) internal view returns (PoolTerms memory terms) {
        terms.rewardPerMillion = PRICE;
        terms.epochUnits = 1_000_000;
        terms.challengeWindow = CHALLENGE;
        terms.vetoWindow = VETO;
        terms.unbondWindow = UNBOND;
        terms.epochLength = 4;
        terms.slashAmount = slashAmount;
        terms.validatorBond = 20;
        terms.maxSlashes = 2;
        terms.lightSlashBps = 5000;
        terms.strikes = 1;
        terms.quorum = 1;
        terms.arbiter = ARBITER;
        terms.signerPenalty = 15;
        terms.token = address(token);
        terms.minStake = slashAmount;
        terms.trainer = TRAINER;
        terms.acceptPenalty = 20;
        terms.signer = signer;
        terms.paramsHash = keccak256(bytes(PARAMS));
    }

    function bond(address account, BondKind kind, uint256 amount) internal {
        token.mint(account, amount);
        vm.prank(account);
        token.approve(address(stakes), amount);
        vm.prank(account);
        stakes.stake(pool, kind, amount);
    }

    function endPool() internal {
        vm.prank(OPERATOR);
        pools.endPool(pool);
    }
}
