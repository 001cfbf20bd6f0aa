// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {PoolTerms} from "../../../contracts/interfaces/IPoolRegistry.sol";
import {Fixture} from "../Fixture.sol";
import {FuzzSelector} from "./Fuzzed.sol";

/// Calls NodeRegistry and PolicyRegistry as random contributors, nodes, operators and trainers of an invite-only pool,
/// also with requests that must be refused. `broken` names a rule that was violated.
contract NodeHandler is Fixture {
    string public broken;
    uint256 internal closed;
    uint256[3] internal ownerKeys = [CONTRIBUTOR_KEY, 0x1C, 0x2C];
    uint256[3] internal nodeKeys = [uint256(0x1D), 0x2D, 0x3D];
    mapping(address node => address) internal ownerOf;
    mapping(address node => uint256) internal bindings;
    mapping(address node => mapping(address owner => uint256)) internal liableUntil;
    mapping(address owner => bool) internal invited;
    mapping(bytes32 digest => bool) internal used;
    bytes32[] internal manifests;

    constructor() {
        super.setUp();
        PoolTerms memory terms = makeTerms();
        terms.isInviteOnly = true;
        closed = makePool(terms);
    }

    function invite(uint256 who, bool isOperator) external {
        address[] memory guests = new address[](1);
        guests[0] = vm.addr(ownerKeys[who % 3]);
        vm.prank(isOperator ? operator : stranger);
        try nodes.invite(closed, guests) {
            if (!isOperator) broken = "an account other than the operator invited";
            invited[guests[0]] = true;
        } catch {}
    }

    function uninvite(uint256 who, bool isOperator) external {
        address guest = vm.addr(ownerKeys[who % 3]);
        vm.prank(isOperator ? operator : stranger);
        try nodes.withdrawInvitation(closed, guest) {
            if (!isOperator || !invited[guest]) broken = "an invitation was withdrawn against the rules";
            invited[guest] = false;
        } catch {}
    }

    /// Values of `flaw`: 0 to 4 none, 5 signature of another owner, 6 signature of another node, 7 old nonce, 8
    /// expired, 9 signatures for another pool.
    function register(uint256 who, uint256 which, uint256 flaw) external {
        (address owner, address its) = (vm.addr(ownerKeys[who % 3]), vm.addr(nodeKeys[which % 3]));
        flaw %= 10;
        uint256 nonce = bindings[its];
        if (flaw == 7 && nonce > 0) --nonce;
        uint256 deadline = flaw == 8 ? block.timestamp - 1 : block.timestamp;
        bytes32 digest = nodes.digestRegistration(flaw == 9 ? pool : closed, owner, its, nonce, deadline);
        bytes memory ownerSignature = sign(ownerKeys[(flaw == 5 ? who % 3 + 1 : who) % 3], digest);
        bytes memory nodeSignature = sign(nodeKeys[(flaw == 6 ? which % 3 + 1 : which) % 3], digest);
        bool isSound = flaw < 5 || (flaw == 7 && bindings[its] == 0);
        bool isDue = isSound && invited[owner] && ownerOf[its] == address(0) && pools.isOpen(closed);
        vm.prank(stranger);
        try nodes.registerNode(closed, owner, its, deadline, ownerSignature, nodeSignature) {
            if (!isDue) broken = "a node was bound against the rules";
            if (used[digest]) broken = "signatures used twice";
            used[digest] = true;
            noteBound(its, owner);
        } catch {
            if (isDue) broken = "a lawful registration was refused";
        }
    }

    function rotate(uint256 who, uint256 from, uint256 to, bool isSigned) external {
        (address owner, address previous) = (vm.addr(ownerKeys[who % 3]), vm.addr(nodeKeys[from % 3]));
        address next = vm.addr(nodeKeys[to % 3]);
        bytes32 digest = nodes.digestRegistration(closed, owner, next, bindings[next], block.timestamp);
        bytes memory signature = sign(nodeKeys[(isSigned ? to % 3 : to % 3 + 1) % 3], digest);
        bool isOwner = ownerOf[previous] == owner;
        vm.prank(owner);
        try nodes.rotateNode(closed, previous, next, block.timestamp, signature) {
            if (!isOwner || !isSigned || !invited[owner]) broken = "rotated against the rules";
            noteRemoved(previous, owner);
            noteBound(next, owner);
        } catch {}
    }

    function remove(uint256 who, uint256 which) external {
        (address owner, address its) = (vm.addr(ownerKeys[who % 3]), vm.addr(nodeKeys[which % 3]));
        bool isOwner = ownerOf[its] == owner;
        vm.prank(owner);
        try nodes.removeNode(closed, its) {
            if (!isOwner) broken = "an account other than the contributor removed a node";
            noteRemoved(its, owner);
        } catch {
            if (isOwner) broken = "a contributor cannot remove its node";
        }
    }

    function publish(uint256 step, bytes32 manifest, bool isTrainer) external {
        step = bound(step, manifests.length == 0 ? 0 : manifests.length - 1, manifests.length + 1);
        vm.prank(isTrainer ? trainer : operator);
        try policies.publish(closed, uint64(step), manifest) {
            bool isDue = isTrainer && step == manifests.length && manifest != 0 && pools.isOpen(closed);
            if (!isDue) broken = "a policy was published against the rules";
            manifests.push(manifest);
        } catch {}
    }

    function pause(bool on) external {
        if (on == pools.paused()) return;
        vm.prank(admin);
        on ? pools.pause() : pools.unpause();
    }

    function wait(uint256 time) external {
        vm.warp(block.timestamp + time % 15);
    }

    function check() external view {
        require(bytes(broken).length == 0, broken);
        for (uint256 i = 0; i < 3; ++i) {
            address its = vm.addr(nodeKeys[i]);
            require(nodes.contributorOf(closed, its) == ownerOf[its], "contributors differ");
            require(nodes.nonceOf(its) == bindings[its], "nonces differ");
            for (uint256 j = 0; j < 3; ++j) {
                address owner = vm.addr(ownerKeys[j]);
                bool isLiable = block.timestamp <= liableUntil[its][owner];
                require(nodes.isLiable(closed, its, owner) == isLiable, "liabilities differ");
            }
        }
        require(policies.stepsOf(closed) == manifests.length, "steps have a gap");
        for (uint256 i = 0; i < manifests.length; ++i) {
            require(policies.policyOf(closed, uint64(i)) == manifests[i], "a policy changed");
        }
    }

    function noteBound(address its, address owner) internal {
        ownerOf[its] = owner;
        ++bindings[its];
        liableUntil[its][owner] = type(uint256).max;
    }

    function noteRemoved(address its, address owner) internal {
        ownerOf[its] = address(0);
        liableUntil[its][owner] = block.timestamp + 20;
    }
}

/// A node works for the contributor that both signatures name, liability lasts one unbonding window after removal, and
/// policies never change.
contract NodeInvariants {
    NodeHandler internal handler;

    function setUp() public {
        handler = new NodeHandler();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function targetSelectors() public view returns (FuzzSelector[] memory targets) {
        bytes4[] memory selectors = new bytes4[](8);
        selectors[0] = NodeHandler.invite.selector;
        selectors[1] = NodeHandler.uninvite.selector;
        selectors[2] = NodeHandler.register.selector;
        selectors[3] = NodeHandler.rotate.selector;
        selectors[4] = NodeHandler.remove.selector;
        selectors[5] = NodeHandler.publish.selector;
        selectors[6] = NodeHandler.pause.selector;
        selectors[7] = NodeHandler.wait.selector;
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(handler), selectors);
    }

    function invariant_NodesAreVouchedForAndPoliciesNeverChange() public view {
        handler.check();
    }
}
