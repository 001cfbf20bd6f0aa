"""Advice for error codes whose messages do not say what to do. docs/reference/errors.md shows it after the messages."""

_SIGN = "Sign the request as docs/protocol.md says, with the coordinator's authority."
_CLAIM_TASK = "Claim another task."
_CLAIM_ORDER = "Claim the next order."
_LINK = "Links are short-lived and for one object: ask for another one."
_KEY = "The chain names another key for this harness."
_WINDOWS = "Wait for the challenge and veto windows, or nothing was earned."
_CALIBRATION = "See [Measure thresholds](../guides/measure-thresholds.md)."
_NODE = "The message quotes the chain's node; the sender of transactions deals with it."
_VLLM = "The message quotes vLLM. The third time in a row ends a worker."
_API = "See [HTTP API](api.md) for the routes and bodies."

ADVICE = {
    "no_epoch_file": "Ask the operator, or somebody who watches the pool, for the file of the epoch.",
    "already_committed": _CLAIM_ORDER,
    "already_known": _NODE,
    "another_policy": "See [Resume training](../guides/resume-training.md).",
    "bad_body": _API,
    "bad_filter": _API,
    "bad_evidence": "A bundle is canonical JSON of at most 64 KiB and agrees with the chain.",
    "bad_link": _LINK,
    "bad_receipt": "The receipt does not fit the task.",
    "bad_request": _API,
    "bad_signature": _SIGN,
    "bad_verdict": _CLAIM_ORDER,
    "commitment_mismatch": _CLAIM_ORDER,
    "database_unavailable": "The message quotes the database.",
    "digest_mismatch": f"Upload the file that the receipt names. {_SIGN}",
    "disk_full": "The trainer goes on from its newest checkpoint, a worker with the policies that it has.",
    "duplicate_submission": "A lease has one receipt, and a receipt one file.",
    "engine_died": _VLLM,
    "engine_out_of_memory": "For a trainer's evaluation, lower `eval.max_batch`.",
    "engine_start": "The message quotes vLLM.",
    "engine_timeout": _VLLM,
    "epoch_disabled": _WINDOWS,
    "equivocation": "A lease has one receipt, and a receipt one file.",
    "exact_impossible": _CALIBRATION,
    "expired_request": "Set the clock: `time` in the answer is the coordinator's.",
    "forgery_passes": _CALIBRATION,
    "honest_rejected": _CALIBRATION,
    "insufficient_funds": "The message quotes the chain's node.",
    "judgement_lapsed": _CLAIM_ORDER,
    "lease_expired": _CLAIM_TASK,
    "method_not_allowed": _API,
    "missing": "Ask for a link and upload the file before the receipt. Links are short-lived and for one object.",
    "model_too_large": "For a trainer's evaluation, lower `eval.max_batch`.",
    "no_reward": _WINDOWS,
    "nonce_too_low": _NODE,
    "not_a_validator": _KEY,
    "not_final": _WINDOWS,
    "not_found": _API,
    "false_leaf": "Compare the verdicts of other validators. The operator computes an epoch with false leaves again.",
    "not_awaited": "Ask for the epoch that awaits signatures again.",
    "not_public": "Evidence is public once its submission is decided, files once their epoch is closed.",
    "not_the_trainer": _KEY,
    "not_yet": _CLAIM_ORDER,
    "not_your_judgement": _CLAIM_ORDER,
    "not_your_task": _CLAIM_TASK,
    "policy_mismatch": "The policy cannot be loaded; the message says why.",
    "pool_paused": "Claim again later. The operator continues with `covey pool resume`.",
    "replayed_nonce": "Use a new nonce for every request.",
    "reverted": "The message quotes the contract.",
    "stake_too_low": "Run `covey stake add`.",
    "stale": _CLAIM_TASK,
    "suspended": "The node was rejected, slashed or removed, or its contributor has too many strikes.",
    "too_few_windows": _CALIBRATION,
    "unavailable": "The message says what is away.",
    "underpriced": _NODE,
    "unknown_case": "Name a receipt hash that `covey case show` prints.",
    "unknown_node": "Run `covey worker register`; the worker then registers with the coordinator.",
    "unknown_task": _CLAIM_TASK,
    "unsigned": _SIGN,
    "wrong_build": "The setting `vllm.interpreter` must name a Python with the same version of Covey.",
    "wrong_size": "The file does not have the size that its link was made for.",
}
