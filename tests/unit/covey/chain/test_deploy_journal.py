from dataclasses import replace
from pathlib import Path

import pytest

from covey.chain.deploy_journal import DeployAttempt, DeployedContract, DeployJournal, DeployRecord
from covey.errors import OperatorError

pytestmark = pytest.mark.unit

A = "0x52908400098527886E0F7030069857D2E4169EE7"
HASH = "0x" + "ab" * 32
CONTRACT = DeployedContract(
    name="NodeRegistry",
    address=A,
    nonce=4,
    arguments="00ff",
    attempts=(DeployAttempt(hash=HASH, raw="02ff", max_fee=9, priority_fee=1),),
)
RECORD = DeployRecord(chain_id=7, deployer=A, token=None, start_block=3, start_hash=HASH, first_nonce=3)


def test_save__with_a_contract__is_read_again(tmp_path: Path):
    journal = DeployJournal(tmp_path / "j")
    assert journal.record is None
    journal.save(RECORD.with_contract(CONTRACT))
    read = DeployJournal(tmp_path / "j").record
    assert read == RECORD.with_contract(CONTRACT)
    assert read is not None
    assert (read.find("NodeRegistry"), read.find("StakeManager")) == (CONTRACT, None)


def test_with_contract__same_name__replaces_it():
    later = replace(CONTRACT, code_hash=HASH)
    assert RECORD.with_contract(CONTRACT).with_contract(later).contracts == (later,)


def test_save__no_path__keeps_it_in_memory():
    journal = DeployJournal(None)
    journal.save(RECORD)
    assert journal.record == RECORD


@pytest.mark.parametrize("text", ["", "{}", '{"contracts": [1]}', '{"contracts": [], "more": 1}', "\x00"])
def test_read__not_a_journal__refused(tmp_path: Path, text: str):
    (tmp_path / "j").write_text(text)
    with pytest.raises(OperatorError, match=r"bad_journal: .* is not the journal of a deployment"):
        DeployJournal(tmp_path / "j")


def test_journal__folder_is_missing_or_a_folder_has_its_name__refused(tmp_path: Path):
    with pytest.raises(OperatorError, match=r"no_folder: .* cannot be written"):
        DeployJournal(tmp_path / "none" / "j").save(RECORD)
    with pytest.raises(OperatorError, match=r"no_folder: .* cannot be read"):
        DeployJournal(tmp_path)
