"""One object store: a local folder by default, or S3 and others by URL (obstore).

Objects stored by the owner are immutable, because their keys contain the hashes of their contents. Objects that a peer
uploads by a link are not, because an S3 link fixes only method, key and time.

Peers upload and download objects by signed, short-lived links. An S3 store signs its own links. For a folder, the
coordinator's API serves `{base_url}/v1/objects/{key}` and checks each link with `require_link`. The owner of the store
chooses every key.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, cast
from urllib.parse import urlencode, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, from_url

from covey.errors import OperatorError, ProtocolError, TransientError

Method = Literal["GET", "PUT"]
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
"""Pattern of allowed keys: plain ASCII names, without "..", percent-encoding or look-alike Unicode letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSigner:
    """Signs links to a store that cannot sign its own."""

    secret: bytes
    """Secret key of the HMAC that signs links."""
    base_url: str
    """Base URL of the API that serves the objects, for example "http://127.0.0.1:8000"."""

    def compute(self, method: Method, key: str, expires: int, size: int) -> str:
        """Return the signature of a link: HMAC-SHA256 over its values, in hexadecimal."""
        text = "\n".join(("covey-link-1", method, key, str(expires), str(size)))
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()


class ObjectStore:
    """Objects by key. Example: `ObjectStore.open("file:///var/covey", signer)`."""

    def __init__(self, store: obstore.store.ObjectStore, signer: LinkSigner) -> None:
        self._store, self._signer = store, signer

    @classmethod
    def open(cls, url: str, signer: LinkSigner) -> "ObjectStore":
        """Open the store at a URL: `file://`, or any scheme that obstore supports (`s3://`, `gs://`, `az://`).

        Raises OperatorError("bad_store") if the store cannot be opened.
        """
        try:
            parts = urlsplit(url)
            if parts.scheme == "file":
                return cls(LocalStore(parts.path, mkdir=True), signer)
            return cls(from_url(url), signer)
        except (BaseError, ValueError, OSError) as error:
            raise OperatorError(
                "bad_store", f"the object store {url} cannot be opened: {error}", fix="Correct the setting store_url"
            ) from error

    def put_named_by_content(self, key: str, data: bytes) -> None:
        """Store an object whose key contains the hash of its content. It is not an error if the key already exists.

        A folder then keeps what it has. An S3 store writes the same content again, because some servers do not
        implement conditional PUT.
        """
        _require_key(key)
        try:
            if isinstance(self._store, LocalStore):
                with suppress(AlreadyExistsError):
                    obstore.put(self._store, key, data, mode="create")
            else:
                # In one request of any size, because some S3 servers do not implement multipart uploads.
                obstore.put(self._store, key, data, use_multipart=False)
        except (BaseError, OSError) as error:
            raise TransientError("store_unavailable", f"the object {key} could not be stored: {error}") from error

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return the content of an object. Raises ProtocolError("missing") or ProtocolError("oversized")."""
        _require_key(key)
        try:
            answer = obstore.get(self._store, key)
            # The size of the version that was opened, even if another one is written under the key meanwhile.
            size = int(answer.meta["size"])
            if size <= max_bytes:
                return bytes(answer.bytes())
        except FileNotFoundError as error:
            raise ProtocolError("missing", f"there is no object {key} in the store", status=404) from error
        except (BaseError, OSError) as error:
            raise TransientError("store_unavailable", f"the object {key} could not be read: {error}") from error
        raise ProtocolError(
            "oversized", f"the object {key} has {size} bytes, but at most {max_bytes} are allowed", status=413
        )

    def delete(self, key: str) -> None:
        """Remove an object. A missing object is not an error."""
        _require_key(key)
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise TransientError("store_unavailable", f"the object {key} could not be deleted: {error}") from error

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove objects, by one request to an S3 store for each 1,000. Missing objects are no error."""
        if isinstance(self._store, LocalStore):
            for key in keys:
                self.delete(key)
            return
        for key in keys:
            _require_key(key)
        try:
            obstore.delete(self._store, list(keys))
        except (BaseError, OSError) as error:
            message = f"{len(keys)} objects from {keys[0]} on could not be deleted: {error}"
            raise TransientError("store_unavailable", message) from error

    def sign_link(self, method: Method, key: str, *, now: float, seconds: int, size: int = 0) -> str:
        """Return a link that allows `method` on `key` until `now + seconds`.

        A PUT link to a folder allows exactly `size` bytes. An S3 link does not fix the size.
        """
        _require_key(key)
        if not isinstance(self._store, LocalStore):
            return obstore.sign(cast("obstore.store.S3Store", self._store), method, key, timedelta(seconds=seconds))
        expires = int(now) + seconds
        query = {"method": method, "expires": expires, "size": size}
        signature = self._signer.compute(method, key, expires, size)
        return f"{self._signer.base_url}/v1/objects/{key}?{urlencode(query | {'signature': signature})}"

    def require_link(self, method: Method, key: str, query: Mapping[str, str], *, now: float) -> int:
        """Return the size in bytes that a link allows.

        Raises ProtocolError("bad_link") if the link is incomplete, was not signed here or has expired.
        """
        _require_key(key)
        try:
            expires, size = int(query["expires"]), int(query["size"])
        except (KeyError, ValueError) as error:
            raise ProtocolError("bad_link", "the link has no valid expiry time or size", status=403) from error
        expected = self._signer.compute(method, key, expires, size)
        if not hmac.compare_digest(expected.encode(), query.get("signature", "").encode()):
            raise ProtocolError("bad_link", "the link was not signed by this service", status=403)
        if now > expires:
            raise ProtocolError("bad_link", "the link has expired", status=403)
        return size


def _require_key(key: str) -> None:
    if not _KEY.fullmatch(key) or len(key) > 512:
        raise ProtocolError("bad_key", "an object key does not consist of plain words separated by slashes", status=404)
