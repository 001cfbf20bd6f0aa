"""One sentence of advice for each Solidity error that a command can receive."""

_UNTIL = "Wait until the time that the error gives in Unix seconds (date -d @SECONDS shows it)"
_TOKENS = "Give the signer tokens (on a devnet: covey devnet fund ADDRESS), or name a smaller amount"
_PAUSED = "Wait until the contracts' admin allows new work again"
_ADDRESS = "Name an account other than the zero address"
_WINDOWS = "Correct the windows in [terms] of the pool file"
_STATE = "See the pool's state with covey pool show: 0 is none, 1 created, 2 active, 3 ended"

ADVICE = {
    "AccessControlUnauthorizedAccount": "Name the key of the account that has the role with --key-file",
    "AlreadyChallenged": "Nothing is left to do for this receipt",
    "AlreadySlashed": "Nothing is left to do: it has already been slashed",
    "CaseExists": "See the receipt's case with covey case show",
    "DuplicateValidator": "Name an account that is not a validator of this pool yet",
    "ERC20InsufficientAllowance": "Run the command again: it approves the amount first",
    "ERC20InsufficientBalance": _TOKENS,
    "EnforcedPause": _PAUSED,
    "EpochTooEarly": _UNTIL,
    "ExpectedPause": "Nothing is left to do: new work is not paused",
    "InsufficientEscrow": "Pay the difference in with covey pool fund",
    "InsufficientStake": "Name an amount of at most the second number, which is the stake; covey stake show shows it",
    "InvalidEpochLength": _WINDOWS,
    "InvalidProof": "Run the command again; if it fails again, the coordinator's proof is wrong: tell the operator",
    "InvalidQuorum": "Lower quorum in [params] to the number of validators, the second number, or name more validators",
    "InvalidSignature": "Use the key file of the account that the message names, or an unchanged file",
    "InvalidSlash": "Correct slash_amount, max_slashes, light_slash_bps or signer_penalty in [terms] of the pool file",
    "InvalidWindow": _WINDOWS,
    "NeverBound": "Name a receipt of a node that the contributor has registered",
    "NodeTaken": "Make another node key, or have its contributor run covey worker remove",
    "NotArbiter": "Name the key of the pool's arbiter with --key-file",
    "NotContributor": "Name the key of the contributor that registered the node with --key-file",
    "NotEquivocation": "Name two receipts of one node for one task and lease whose files differ",
    "NotFinal": _UNTIL,
    "NotInvited": "Ask the pool's operator to run covey pool invite with the contributor's address",
    "NotOperator": "Name the key of the pool's operator with --key-file; covey pool show prints its address",
    "NotOverdue": "Wait until the epoch that the countersignature names as latest_epoch is posted",
    "NotTrainer": "Name the key of the pool's trainer; covey pool show prints its address",
    "NotValidator": "Name a validator of the pool; covey pool show lists them",
    "NothingToClaim": "Everything that is final is claimed already; covey rewards show shows the amount",
    "NothingToSlash": "Nothing is left to do: the account has no bond or stake that can be slashed",
    "NothingToWithdraw": "Begin with covey stake unbond, and wait for the unbonding window",
    "OfficeConflict": "Name another account: the arbiter is neither the operator nor a validator",
    "ParamsMismatch": "Run covey pool create again with the same pool file",
    "PoolNotActive": "Run covey pool start, or see with covey pool show whether the pool has ended",
    "PoolNotClosed": _UNTIL,
    "PoolNotOpen": "See with covey pool show whether the pool has ended; if not, the contracts' admin paused new work",
    "PoolNotStarted": "Run covey pool start",
    "RewardExceedsEpochs": "Run the command again: it claims against the newest final epoch",
    "SignatureExpired": "Set this machine's clock, and run the command again",
    "SlashCapReached": _UNTIL,
    "TooLate": "Nothing can be done any more: too many epochs have been posted since the promise was due",
    "StakeIsLocked": "Wait until the open case is decided; covey case show says until when",
    "TooManyUnbondings": "Run covey stake withdraw once the oldest unbonding is over",
    "UnbondWindowTooShort": "Set unbond_window in [terms] of the pool file to at least the second number",
    "UnknownEpoch": "Run the command again: the newest epoch may have been disabled",
    "UnsupportedToken": "Create the pool with a token that credits what was sent, without a fee",
    "WindowClosed": "Nothing can be done any more: the window has passed",
    "WindowOpen": _UNTIL,
    "WrongCaseState": "See the case's state with covey case show; it is decided already",
    "WrongChallengeState": "See the challenge's state in the error: 0 is not challenged, 1 open, 2 answered, 3 upheld",
    "WrongState": _STATE,
    "ZeroAddress": _ADDRESS,
    "ZeroAmount": "Name an amount over zero: there is nothing to move",
}


def add_advice(reason: str) -> str:
    """Append the advice to a contract's reason, for example "NothingToClaim(). Everything that is final is ..."."""
    advice = ADVICE.get(reason.partition("(")[0])
    return f"{reason}. {advice}" if advice else reason
