// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {PoolTerms, Role} from "../../contracts/interfaces/IPoolRegistry.sol";
import {Setting} from "./Setting.sol";

/// Properties of PoolRegistry: which terms it accepts, and when changes of roles and prices hold.
contract RegistryProofs is Setting {
    function deployStakes() internal override {}

    /// A pool's windows keep stake slashable for as long as its work can be judged, and let epochs be posted again.
    function check_accepted_windows_fit_together(
        uint24 challengeWindow,
        uint24 vetoWindow,
        uint24 unbondWindow,
        uint24 epochLength
    ) external {
        PoolTerms memory terms = makeTerms(SLASH);
        terms.challengeWindow = challengeWindow;
        terms.vetoWindow = vetoWindow;
        terms.unbondWindow = unbondWindow;
        terms.epochLength = epochLength;
        makePool(terms);
        uint256 both = uint256(challengeWindow) + vetoWindow;
        assert(challengeWindow > 0 && vetoWindow > 0 && unbondWindow >= both);
        assert(256 * uint256(epochLength) >= 4 * both && 2 * uint256(epochLength) <= challengeWindow);
    }

    /// A slash never exceeds the required stake, and a penalty never exceeds a validator's bond.
    function check_accepted_amounts_fit_together(uint96 slashAmount, uint96 minStake, uint96 bond, uint96 penalty)
        external
    {
        PoolTerms memory terms = makeTerms(slashAmount);
        terms.minStake = minStake;
        terms.validatorBond = bond;
        terms.signerPenalty = penalty;
        terms.acceptPenalty = penalty;
        makePool(terms);
        assert(slashAmount <= minStake && penalty <= bond);
    }

    /// A new signer holds after one unbonding window, so that contributors can leave before.
    function check_signer_changes_after_unbonding(address account, uint16 wait) external {
        vm.assume(account != OPERATOR);
        vm.prank(OPERATOR);
        pools.proposeRole(pool, Role.Signer, account);
        vm.warp(START + wait);
        assert(pools.signerOf(pool) == (wait < UNBOND ? OPERATOR : account));
    }

    /// A lower price holds after one unbonding window, and a higher one after a challenge window.
    function check_price_changes_after_its_window(uint96 price, uint16 wait) external {
        vm.prank(OPERATOR);
        pools.setPrice(pool, price);
        uint256 window = price > PRICE ? CHALLENGE : UNBOND;
        vm.warp(START + wait);
        assert(pools.priceAt(pool, block.timestamp) == (wait < window ? PRICE : price));
    }

    /// A change of the price leaves every price of the past and of the present as it was.
    function check_past_prices_never_change(uint96 price, uint96 later, uint16 wait, uint16 back) external {
        vm.prank(OPERATOR);
        pools.setPrice(pool, price);
        vm.warp(START + wait);
        uint256 asked = block.timestamp - back;
        uint256 before = pools.priceAt(pool, asked);
        vm.prank(OPERATOR);
        pools.setPrice(pool, later);
        assert(pools.priceAt(pool, asked) == before);
    }
}
