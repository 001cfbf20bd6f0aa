"""Opens the sandbox in which untrusted files are decoded."""

from covey.protocol.params import MAX_DECODED_BYTES
from covey.sandbox import CallLimits, IsolationSetting, Sandbox


def open_decoder(*, cpu_seconds: float, memory_bytes: int, isolation: IsolationSetting) -> Sandbox:
    """Start a sandbox that runs `codec.decode_framed`. The caller must close it.

    `cpu_seconds` and `memory_bytes` limit the decoding of one file.
    """
    return Sandbox(
        "covey.protocol.submission_file.codec:build_decoder",
        limits=CallLimits.for_cpu(cpu_seconds, memory_bytes=memory_bytes, output_bytes=MAX_DECODED_BYTES),
        isolation=isolation,
    )
