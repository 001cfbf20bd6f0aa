import pytest

from covey.chain import abi_codec
from covey.chain.advice import ADVICE, add_advice

pytestmark = pytest.mark.unit

NOT_MET_BY_COMMANDS = {
    # Of roles, contracts among themselves, and courts: no command sends the calls that they refuse.
    *("AlreadySlashed", "BondTooSmall", "FindingExpired", "NoFreeStake", "NotCourt", "NotEquivocation", "NotLedger"),
    *("NeverBound", "NotLiable", "NotOverdue", "NothingToAnswer", "NothingToSlash", "PoolClosed"),
    *("QuorumNotReached", "TooLate", "TooManyUnits", "UnknownStep"),
    *("UnorderedValidators", "WrongBond", "WrongChallengeState", "WrongDeployment", "WrongEpoch", "WrongHeader"),
    *("WrongLeaf", "WrongPreviousHash", "WrongStep", "ZeroHash"),
    # Of OpenZeppelin, for what the typed calls cannot do.
    *(
        "AccessControlBadConfirmation",
        "AccessControlEnforcedDefaultAdminDelay",
        "AccessControlEnforcedDefaultAdminRules",
    ),
    *("AccessControlInvalidDefaultAdmin", "AccessControlUnauthorizedAccount", "ECDSAInvalidSignature"),
    *("ECDSAInvalidSignatureLength", "ECDSAInvalidSignatureS", "ERC20InvalidApprover", "ERC20InvalidReceiver"),
    *("ERC20InvalidSender", "ERC20InvalidSpender", "ExpectedPause", "FailedCall", "InsufficientBalance"),
    *("InvalidShortString", "ReentrancyGuardReentrantCall", "SafeCastOverflowedUintDowncast"),
    *("SafeERC20FailedOperation", "StringTooLong"),
}


def test_advice__every_error_of_the_contracts__is_explained_or_met_by_no_command():
    errors = {item.name for name in abi_codec.CONTRACT_NAMES for item in abi_codec.load_artifact(name).errors}
    assert set(ADVICE) | NOT_MET_BY_COMMANDS == errors
    assert set(ADVICE) & NOT_MET_BY_COMMANDS == set()


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("NothingToClaim()", "NothingToClaim(). Everything that is final is claimed already"),
        ("NotOperator(1, 0xAb)", "NotOperator(1, 0xAb). Name the key of the pool's operator with --key-file"),
        ("InvalidQuorum(4, 3)", "InvalidQuorum(4, 3). Lower quorum"),
        ("no reason", "no reason"),
        ("", ""),
        ("unknown error 0x1234", "unknown error 0x1234"),
    ],
)
def test_add_advice__known_and_unknown(reason, expected):
    found = add_advice(reason)
    assert found.startswith(expected)
    assert (found == reason) == ("." not in expected)
