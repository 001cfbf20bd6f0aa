"""A real S3 server of a test's own: OpenStack Swift with its middleware s3api, one node on loopback.

It needs Debian's package python3-swift, and a file system with extended attributes (ext4, XFS, Btrfs, or tmpfs since
Linux 6.6). It runs as the tests' user, and writes nothing outside its folder.
"""

import os
import pwd
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import obstore
import pytest
from obstore.store import S3Store

from covey.runtime.http import find_free_ports
from tests.fakes.private_servers import PrivateServer
from tests.fakes.s3 import BUCKET, REGION, SECRET_KEY

PYTHON = "/usr/bin/python3"
"""The Python that packages of the distribution are installed for."""
PROGRAM = Path(__file__).with_name("swift_servers.py")
SERVERS = ("account", "container", "object", "proxy")
ACCESS_KEY = "covey:test"
"""Account and user of tempauth. The user's password is the secret key."""

COMMON = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}
mount_check = false
disable_fallocate = true
fallocate_reserve = 0
log_address = {folder}/no-syslog
log_level = WARNING
"""
STORAGE = """\
[pipeline:main]
pipeline = {server}-server
[app:{server}-server]
use = egg:swift#{server}
"""
PROXY = f"""\
[pipeline:main]
pipeline = catch_errors gatekeeper cache s3api tempauth proxy-server
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:cache]
paste.filter_factory = __main__:make_cache
[filter:s3api]
use = egg:swift#s3api
location = {REGION}
allow_multipart_uploads = false
[filter:tempauth]
use = egg:swift#tempauth
user_{ACCESS_KEY.replace(":", "_")} = {SECRET_KEY} .admin
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
"""


class Swift:
    """A running Swift with one bucket. Example: `swift.read_objects()["bucket/pool/uploads/1"]`."""

    def __init__(self, url: str) -> None:
        self.environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }
        """Environment variables with which a client of S3 finds this store."""
        self._store = S3Store(
            BUCKET,
            endpoint=url,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region=REGION,
            client_options={"allow_http": True},
        )

    def create_bucket(self) -> bool:
        """Create the bucket. Return False if Swift cannot do it yet."""
        link = obstore.sign(self._store, "PUT", "", timedelta(minutes=1))
        return httpx.put(link, trust_env=False).status_code == 200

    def read_objects(self) -> dict[str, bytes]:
        """Return the content of every object by bucket and key."""
        keys = [meta["path"] for page in obstore.list(self._store) for meta in page]
        return {f"{BUCKET}/{key}": bytes(obstore.get(self._store, key).bytes()) for key in keys}

    def clear(self) -> None:
        """Delete every object."""
        for page in obstore.list(self._store):
            obstore.delete(self._store, [meta["path"] for meta in page])


@contextmanager
def open_swift(folder: Path) -> Iterator[Swift]:
    """Run a Swift that keeps everything in an empty folder. Skips the test where Swift cannot run."""
    if obstacle := _find_obstacle(folder):
        pytest.skip(obstacle)
    ports = find_free_ports(len(SERVERS))
    _write_settings(folder, dict(zip(SERVERS, ports, strict=True)))
    swift = Swift(f"http://127.0.0.1:{ports[-1]}")

    def is_up() -> bool:
        # The bucket comes last, because the proxy avoids a storage server that did not answer it several times.
        return all(_is_listening(port) for port in ports) and swift.create_bucket()

    command = [PYTHON, "-I", "-B", str(PROGRAM), str(folder)]
    server = PrivateServer(command, folder / "swift.log", url=swift.environment["AWS_ENDPOINT_URL"], is_up=is_up)
    try:
        server.start()
        yield swift
    finally:
        server.kill()


def _find_obstacle(folder: Path) -> str | None:
    """Return why Swift cannot run, or None if it can."""
    try:
        subprocess.run([PYTHON, "-I", "-c", "import swift.common.middleware.s3api"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "OpenStack Swift is not installed: apt-get install --no-install-recommends python3-swift"
    try:
        os.setxattr(folder, "user.covey", b"1")
        pwd.getpwuid(os.geteuid())
    except OSError as error:
        return f"OpenStack Swift needs a file system with extended attributes: {error}"
    except KeyError:
        return "OpenStack Swift needs a user with a name"
    return None


def _write_settings(folder: Path, ports: dict[str, int]) -> None:
    (folder / "disk").mkdir()
    (folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = covey\n")
    user = pwd.getpwuid(os.geteuid()).pw_name
    for server, port in ports.items():
        common = COMMON.format(port=port, user=user, folder=folder)
        own = PROXY if server == "proxy" else STORAGE.format(server=server)
        (folder / f"{server}.conf").write_text(common + own)


def _is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
