"""A store that speaks S3 on loopback: objects in memory, and every request signed by Signature Version 4.

It supports only what the roles use, and deletion by a link, which they must not allow: PUT, GET, HEAD and DELETE. As
with S3, a presigned link binds its verb, its key and its time, but neither size nor content. A conditional PUT is not
implemented, as in OpenStack Swift (`tests.fakes.swift`).
"""

import hashlib
import hmac
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, urlsplit

ACCESS_KEY, SECRET_KEY, REGION = "covey-test", "covey-test-secret", "us-east-1"
BUCKET = "bucket"
UNSIGNED = "UNSIGNED-PAYLOAD"


class FakeS3(ThreadingHTTPServer):
    """A store in memory. Example: `with open_s3() as s3: s3.objects["bucket/pool/uploads/1"]`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        """Content by bucket and key."""
        self.lock = threading.Lock()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which a client of S3 finds this store."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_port}",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    def read_objects(self) -> dict[str, bytes]:
        """Return the content of every object by bucket and key."""
        with self.lock:
            return dict(self.objects)

    def clear(self) -> None:
        """Delete every object."""
        with self.lock:
            self.objects.clear()


@contextmanager
def open_s3() -> Iterator[FakeS3]:
    with FakeS3() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(timeout=60)


class _Handler(BaseHTTPRequestHandler):
    server: FakeS3
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body, key = self._read(), self._key()
        if not self._is_signed(body):
            return self._answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        if "if-none-match" in self.headers or "if-match" in self.headers:
            return self._answer(501, b"<Error><Code>NotImplemented</Code></Error>")
        with self.server.lock:
            self.server.objects[key] = body
        return self._answer(200)

    def do_GET(self) -> None:
        if not self._is_signed(self._read()):
            return self._answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        content = self.server.objects.get(self._key())
        if content is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return self._answer(200, content)

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        if not self._is_signed(self._read()):
            return self._answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        self.server.objects.pop(self._key(), None)
        return self._answer(204)

    def do_POST(self) -> None:
        body = self._read()
        if not self._is_signed(body) or urlsplit(self.path).query != "delete":
            return self._answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        keys = re.findall(r"<Key>([^<]*)</Key>", body.decode())
        for key in keys:
            self.server.objects.pop(f"{self._key()}/{key}", None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        return self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def _key(self) -> str:
        return urlsplit(self.path).path.lstrip("/")

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("etag", f'"{hashlib.md5(body).hexdigest()}"')
        self.send_header("last-modified", formatdate(usegmt=True))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _is_signed(self, body: bytes) -> bool:
        query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        if "X-Amz-Signature" in query:
            return self._is_presigned(query)
        fields = dict(
            re.findall(r"(Credential|SignedHeaders|Signature)=([^,\s]+)", self.headers.get("authorization", ""))
        )
        digest, at = self.headers.get("x-amz-content-sha256", ""), self.headers.get("x-amz-date", "")
        if not fields or digest != hashlib.sha256(body).hexdigest():
            return False
        expected = self._sign(fields["Credential"], fields["SignedHeaders"], query, digest=digest, at=at)
        return hmac.compare_digest(expected, fields["Signature"])

    def _is_presigned(self, query: Mapping[str, str]) -> bool:
        at = query["X-Amz-Date"]
        age = datetime.now(UTC) - datetime.strptime(at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        rest = {name: value for name, value in query.items() if name != "X-Amz-Signature"}
        expected = self._sign(query["X-Amz-Credential"], query["X-Amz-SignedHeaders"], rest, digest=UNSIGNED, at=at)
        is_fresh = age.total_seconds() <= int(query["X-Amz-Expires"])
        return is_fresh and hmac.compare_digest(expected, query["X-Amz-Signature"])

    def _sign(self, credential: str, signed: str, query: Mapping[str, str], *, digest: str, at: str) -> str:
        """Return the signature that a request must have, over its verb, path, query, named headers and content."""
        pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query.items())
        lines = [
            self.command,
            urlsplit(self.path).path,
            "&".join(f"{name}={value}" for name, value in pairs),
            *(f"{name}:{self.headers.get(name, '').strip()}" for name in signed.split(";")),
            "",
            signed,
            digest,
        ]
        scope = credential.partition("/")[2]
        hashed = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        key = b"AWS4" + SECRET_KEY.encode()
        for part in (*scope.split("/"), "\n".join(("AWS4-HMAC-SHA256", at, scope, hashed))):
            key = hmac.digest(key, part.encode(), "sha256")
        return key.hex() if credential.startswith(f"{ACCESS_KEY}/") else ""

    def log_message(self, *_: object) -> None:
        """Log nothing, to keep the tests' output clean."""
