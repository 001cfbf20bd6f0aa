// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPoolRegistry, PoolTerms} from "./interfaces/IPoolRegistry.sol";

/// @title TermsChecks
/// @notice Part of PoolRegistry that checks accounts, windows and amounts of a pool's terms, and holds its limits.
abstract contract TermsChecks {
    /// @notice Longest challenge and veto window.
    uint256 public constant MAX_WINDOW = 30 days;
    /// @notice Longest unbonding window.
    uint256 public constant MAX_UNBOND_WINDOW = 180 days;
    /// @notice Maximum length of an announced URL in bytes.
    uint256 public constant MAX_URL = 256;
    /// @notice Maximum number of validators of a pool. It bounds the gas of opening a case.
    uint256 public constant MAX_VALIDATORS = 32;
    /// @notice Number of epochs that EpochLedger keeps of each pool; the same as EpochLedger.KEPT_EPOCHS.
    uint256 public constant KEPT_EPOCHS = 256;

    /// @dev Checks the addresses in the terms and both quorums.
    function _requireOffices(PoolTerms calldata terms, uint256 validators) internal view {
        if (terms.trainer == address(0) || terms.arbiter == address(0) || terms.token == address(0)) {
            revert IPoolRegistry.ZeroAddress();
        }
        bool isJudge = terms.arbiter == msg.sender || terms.arbiter == terms.signer;
        if (isJudge) revert IPoolRegistry.OfficeConflict(terms.arbiter);
        bool isQuorum = terms.quorum > 0 && terms.quorum <= validators && validators <= MAX_VALIDATORS;
        if (!isQuorum) revert IPoolRegistry.InvalidQuorum(terms.quorum, validators);
        if (terms.headerQuorum > validators) revert IPoolRegistry.InvalidQuorum(terms.headerQuorum, validators);
    }

    /// @dev Time for which an epoch must be kept: until it is final, and until everything promised for it has been
    /// challenged and answered.
    function _settlementSpan(uint256 challengeWindow, uint256 vetoWindow) internal pure returns (uint256) {
        return 4 * (challengeWindow + vetoWindow);
    }

    /// @dev Checks that the terms name the hash of the parameters.
    function _requireParams(PoolTerms calldata terms, string calldata params) internal pure {
        bytes32 actual = keccak256(bytes(params));
        if (actual != terms.paramsHash) revert IPoolRegistry.ParamsMismatch(terms.paramsHash, actual);
    }

    /// @dev Checks each window, and that the windows fit together.
    function _requireWindows(PoolTerms calldata terms) internal pure {
        _requireWindow(terms.challengeWindow, MAX_WINDOW);
        _requireWindow(terms.vetoWindow, MAX_WINDOW);
        _requireWindow(terms.unbondWindow, MAX_UNBOND_WINDOW);
        uint256 required = uint256(terms.challengeWindow) + terms.vetoWindow;
        if (terms.unbondWindow < required) revert IPoolRegistry.UnbondWindowTooShort(terms.unbondWindow, required);
        uint256 shortest =
            (_settlementSpan(terms.challengeWindow, terms.vetoWindow) + KEPT_EPOCHS - 1) / KEPT_EPOCHS;
        uint256 longest = terms.challengeWindow / 2;
        bool isLengthValid = terms.epochLength >= shortest && terms.epochLength <= longest;
        if (!isLengthValid) revert IPoolRegistry.InvalidEpochLength(terms.epochLength, shortest);
    }

    /// @dev Checks the slashing terms, which InvalidSlash lists.
    function _requireSlash(PoolTerms calldata terms) internal pure {
        bool isSlashFit = terms.lightSlashBps <= 10_000 && terms.slashAmount <= terms.minStake;
        uint256 most = uint256(terms.slashAmount) * terms.maxSlashes;
        bool isCapFit = terms.maxSlashes > 0 && most <= type(uint96).max;
        bool arePenaltiesFit =
            terms.signerPenalty <= terms.validatorBond && terms.acceptPenalty <= terms.validatorBond;
        if (!isSlashFit || !isCapFit || !arePenaltiesFit) revert IPoolRegistry.InvalidSlash();
    }

    function _requireWindow(uint256 window, uint256 longest) private pure {
        if (window == 0 || window > longest) revert IPoolRegistry.InvalidWindow(window);
    }
}
