"""One sentence of advice for each Solidity error that a command can receive."""

_UNTIL = "Wait until the time in the error"
_TOKENS = "Send tokens to the account that signs (on a devnet: covey devnet fund ADDRESS), or choose a smaller amount"
_PAUSED = "Wait until the contracts' admin resumes new work"
_ADDRESS = "Use an address other than the zero address"
_WINDOWS = "Correct the windows in [terms] of the pool file"
_STATE = "Check the pool's state with covey pool show: 0 is none, 1 created, 2 active, 3 ended"

ADVICE = {
    "AccessControlUnauthorizedAccount": "Set --key-file to the key of the account that has this role",
    "AlreadyChallenged": "No action is needed: this receipt has already been challenged",
    "AlreadySlashed": "No action is needed: this case has already led to a slash",
    "CaseExists": "Check the receipt's case with covey case show",
    "BondTooSmall": "Ask the validator to add the missing bond with covey stake add --kind validator",
    "DuplicateValidator": "Use an account that is not yet a validator of this pool",
    "ERC20InsufficientAllowance": "Run the command again: it approves the amount first",
    "ERC20InsufficientBalance": _TOKENS,
    "EnforcedPause": _PAUSED,
    "EpochTooEarly": _UNTIL,
    "ExpectedPause": "No action is needed: new work is not paused",
    "InsufficientEscrow": "Add the missing amount with covey pool fund",
    "InsufficientStake": "Choose an amount up to the second number, the available stake in the token's smallest unit",
    "InvalidEpochLength": _WINDOWS,
    "InvalidProof": "Run the command again; if it fails again, report the wrong proof to the pool's operator",
    "InvalidQuorum": "Lower quorum in [params] to at most the number of validators, the second number, or add "
    "validators; the same holds for header_quorum in [terms]",
    "InvalidSignature": "Use the key file of the account in the error, and check that the signed file is unchanged",
    "InvalidSlash": "Correct the amounts and penalties of slashing in [terms] of the pool file",
    "InvalidWindow": _WINDOWS,
    "NeverBound": "Use a receipt of a node that the contributor has registered",
    "NodeTaken": "Create another node key, or ask the node's contributor to run covey worker remove",
    "NotArbiter": "Set --key-file to the key of the pool's arbiter",
    "UrlTooLong": "Use a URL of at most 256 bytes",
    "NotCreditor": "Set --key-file to the key of the account that owns the credit, or leave out --to",
    "NotContributor": "Set --key-file to the key of the contributor that registered the node",
    "NotRefuted": "No action is possible: the arbiter has not disabled the epoch with this header as false",
    "NotReplayable": "No action is possible: an accept of this work may honestly be wrong",
    "NotEquivocation": "Use two receipts in which one node claims different files for the same task and lease",
    "NotFinal": _UNTIL,
    "NotInvited": "Ask the pool's operator to run covey pool invite with the contributor's address",
    "NotSigner": "Use the key of the pool's signer, whose address covey pool show prints",
    "NothingToChange": "No action is needed: this account or price holds already",
    "NotOperator": "Set --key-file to the key of the pool's operator, whose address covey pool show prints",
    "NotOverdue": _UNTIL,
    "NotTrainer": "Use the key of the pool's trainer, whose address covey pool show prints",
    "NotValidator": "Use a validator of the pool; covey pool show lists them",
    "NothingToClaim": "Wait for the next final epoch: all final rewards are already claimed",
    "NothingToSlash": "No action is possible: the account has no stake or bond that can be slashed",
    "NothingToWithdraw": "Run covey stake unbond first, and wait until the unbonding window ends",
    "OfficeConflict": "Use another account: the arbiter must be neither the operator, the signer nor a validator",
    "ParamsMismatch": "Run covey pool create again with the same pool file",
    "PoolClosed": "No action is possible any more: the pool closed at the time in the error",
    "PoolNotActive": "Run covey pool start, or check with covey pool show whether the pool has ended",
    "PoolNotClosed": "Wait until the time in the error; if it is never, end the pool with covey pool end",
    "PoolNotOpen": "Check with covey pool show whether the pool has ended; if not, the contracts are paused",
    "ProposalPending": "Ask the pool's operator to replace the proposal; covey pool show prints its time",
    "PoolNotStarted": "Run covey pool start",
    "QuorumNotReached": "Add signatures of more validators until there are as many as the second number",
    "RewardExceedsEpochs": "Run the command again; it then uses the newest final epoch",
    "SignatureExpired": "Correct this machine's clock, and run the command again",
    "SlashCapReached": _UNTIL,
    "PromiseTooLong": "No action is possible: the operator promised more time than the ledger keeps epochs for",
    "TooLate": "No action is possible any more: the time for challenges ended at the time in the error",
    "SignerNotIdle": _UNTIL,
    "StakeIsLocked": "Wait until the open case is decided; covey case show prints the deadline",
    "TooManyUnbondings": "Run covey stake withdraw once the oldest unbonding window has ended",
    "UnbondWindowTooShort": "Set unbond_window in [terms] of the pool file to at least the second number",
    "TooManyUnits": "Leave out work until the epoch has at most the second number of units",
    "UnknownEpoch": "Run the command again: the newest epoch may have been disabled",
    "UnsupportedToken": "Wait until the token is no longer paused; a token that takes a fee or blocks accounts cannot "
    "be used for this",
    "WindowClosed": "No action is possible any more: the window has ended",
    "WindowOpen": _UNTIL,
    "WrongCaseState": "Check the state of the case with covey case show; it is already decided",
    "WrongChallengeState": "Check the challenge's state in the error: 0 is none, 1 open, 2 answered, 3 upheld",
    "WrongEpoch": "Use the file of the epoch with the first number",
    "WrongPreviousHash": "Use the file of an epoch that continues the first hash",
    "WrongState": _STATE,
    "ZeroAddress": _ADDRESS,
    "ZeroAmount": "Choose an amount above 0",
}


def add_advice(reason: str) -> str:
    """Append the advice to a contract's reason, for example "NothingToClaim(). Everything that is final is ..."."""
    advice = ADVICE.get(reason.partition("(")[0])
    return f"{reason}. {advice}" if advice else reason
