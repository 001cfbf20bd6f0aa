// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochLedger} from "../../contracts/EpochLedger.sol";
import {SlashingCourt} from "../../contracts/SlashingCourt.sol";
import {IEpochLedger} from "../../contracts/interfaces/IEpochLedger.sol";
import {ISlashingCourt} from "../../contracts/interfaces/ISlashingCourt.sol";
import {Fixture} from "./Fixture.sol";

contract DeploymentTest is Fixture {
    function test_WhenDeployed_EachContractNamesTheOthers() public view {
        assertEq(stakes.LEDGER(), address(ledger));
        assertEq(stakes.COURT(), address(court));
        assertEq(address(stakes.POOLS()), address(pools));
        assertEq(address(ledger.STAKES()), address(stakes));
        assertEq(address(ledger.POOLS()), address(pools));
        assertEq(address(ledger.NODES()), address(nodes));
        assertEq(address(ledger.COURT()), address(court));
        assertEq(address(court.STAKES()), address(stakes));
        assertEq(address(court.NODES()), address(nodes));
        assertEq(address(policies.POOLS()), address(pools));
        assertEq(pools.KEPT_EPOCHS(), ledger.KEPT_EPOCHS());
    }

    function test_WhenStakeManagerNamesAnotherContract_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.WrongDeployment.selector));
        new EpochLedger(pools, nodes, stakes);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.WrongDeployment.selector));
        new SlashingCourt(pools, nodes, stakes);
    }
}
