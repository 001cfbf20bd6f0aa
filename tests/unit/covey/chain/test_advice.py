import pytest

from covey.chain import abi_codec
from covey.chain.advice import ADVICE, add_advice

pytestmark = pytest.mark.unit

NOT_MET_BY_COMMANDS = {
    # Errors of calls that only roles and contracts send, not commands.
    *("FindingExpired", "NoFreeStake", "NotCourt", "NotLedger", "NotLiable", "NothingToAnswer"),
    *("NotSelf", "TooManyVerdicts"),
    *("UnknownStep", "UnorderedValidators", "WrongBond"),
    *("WrongDeployment", "WrongHeader", "WrongLeaf", "WrongStep", "ZeroHash"),
    # Errors of OpenZeppelin that the typed calls cannot cause.
    *(
        "AccessControlBadConfirmation",
        "AccessControlEnforcedDefaultAdminDelay",
        "AccessControlEnforcedDefaultAdminRules",
    ),
    *("AccessControlInvalidDefaultAdmin", "ECDSAInvalidSignature"),
    *("ECDSAInvalidSignatureLength", "ECDSAInvalidSignatureS", "ERC20InvalidApprover", "ERC20InvalidReceiver"),
    *("ERC20InvalidSender", "ERC20InvalidSpender", "FailedCall", "InsufficientBalance"),
    *("ERC2612ExpiredSignature", "ERC2612InvalidSigner", "InvalidAccountNonce", "InvalidShortString"),
    *("ReentrancyGuardReentrantCall", "SafeCastOverflowedUintDowncast"),
    *("SafeERC20FailedOperation", "StringTooLong"),
}


def test_advice__every_error_of_the_contracts__has_advice_or_cannot_reach_a_command():
    errors = {item.name for name in abi_codec.CONTRACT_NAMES for item in abi_codec.load_artifact(name).errors}
    assert set(ADVICE) | NOT_MET_BY_COMMANDS == errors
    assert set(ADVICE) & NOT_MET_BY_COMMANDS == set()


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("NothingToClaim()", "NothingToClaim(). Wait for the next final epoch"),
        ("NotOperator(1, 0xAb)", "NotOperator(1, 0xAb). Set --key-file to the key of the pool's operator"),
        ("InvalidQuorum(4, 3)", "InvalidQuorum(4, 3). Lower quorum"),
        ("no reason", "no reason"),
        ("", ""),
        ("unknown error 0x1234", "unknown error 0x1234"),
    ],
)
def test_add_advice__known_and_unknown_reasons(reason, expected):
    text = add_advice(reason)
    assert text.startswith(expected)
    assert (text == reason) == ("." not in expected)
