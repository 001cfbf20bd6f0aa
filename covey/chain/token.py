"""The ERC-20 token of a pool, as its contract describes itself. Nothing that a token reports is checked here."""

from covey.chain import abi_codec
from covey.chain.contract import Contract
from covey.chain.json_rpc import Call
from covey.protocol.ids import Address, Hash


class Token(Contract):
    """An ERC-20 token. Only a devnet's token has `mint`."""

    NAME = "TestToken"

    def approve(self, spender: Address, amount: int) -> Call:
        return self._write("approve", spender, amount)

    def mint(self, to: Address, amount: int) -> Call:
        return self._write("mint", to, amount)

    def balance_of(self, account: Address) -> int:
        return int(self._read("balanceOf", account))

    def allowance(self, owner: Address, spender: Address) -> int:
        return int(self._read("allowance", owner, spender))

    def decimals(self) -> int:
        """Return the decimals that the token reports, unchecked. See `covey.chain.amounts.read_unit`."""
        return int(self._read("decimals"))

    def name(self) -> str:
        """Return the name that the token reports, unchecked."""
        return str(self._read("name"))

    def domain_separator(self) -> Hash:
        """Return the domain separator that the token reports, unchecked. See `covey.chain.permits`."""
        return Hash(self._read("DOMAIN_SEPARATOR"))

    def nonces(self, owner: Address) -> int:
        """Return the nonce of an account's next permit."""
        return int(self._read("nonces", owner))

    def check_permit(self, *permit: object) -> None:
        """Raise ProtocolError("reverted") if the token would refuse a permit."""
        self._client.call(self.address, abi_codec.encode_call(self.NAME, "permit", permit), block=self._block)

    def symbol(self) -> str:
        """Return the symbol that the token reports, unchecked."""
        return str(self._read("symbol"))
