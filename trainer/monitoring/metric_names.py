"""Meaning of each value in a line of `metrics.jsonl`, by event and name. docs/reference/metrics.md is generated from
it.
"""

from collections.abc import Mapping

METRICS: Mapping[str, Mapping[str, str]] = {
    "update": {
        "reward/mean": "Mean reward of the batch's rollouts.",
        "reward/task": "Mean of the task's part of the reward.",
        "reward/length_penalty": "Mean of what the completion's length took off the reward.",
        "policy/loss": "Mean loss of the updates.",
        "policy/ratio": "Mean probability ratio of a token, of the policy to the one that sampled, before clipping.",
        "policy/entropy": "Mean entropy of the policy, in nats per token.",
        "policy/outside_clip": "Share of tokens whose probability ratio to the policy that sampled is outside"
        " 1 ± `clip_epsilon`, whether they are clipped or not.",
        "policy/mismatch_kl": "Mean divergence of the policy that sampled from the one that learns (k3), in nats per"
        " token.",
        "policy/mismatch_kl_max": "Largest contribution of one token to that divergence, in nats.",
        "policy/kl": "Mean divergence from the policy of step 0 by `kl_estimator`, in nats per token; 0 if `kl_coef`"
        " is 0.",
        "policy/clip_ratio": "Share of tokens whose gradient the clipping removed or `importance_cap` held down; the"
        " decoupled objective never clips with one update per step.",
        "optim/grad_norm": "Largest gradient norm of the updates, before it is limited.",
        "optim/learning_rate": "Learning rate of the last update.",
        "staleness_mean": "Mean number of steps between the policy that sampled and this one.",
        "staleness_max": "Largest number of steps between the policy that sampled and this one.",
        "batch/samples": "Number of rollouts in the batch.",
        "batch/tokens": "Number of completion tokens in the updates; the online filter takes out those of dead groups.",
        "batch/completion_tokens": "Mean length of a completion, in tokens.",
        "batch/truncated_share": "Share of completions that the limit of tokens cut.",
        "batch/live_share": "Share of rollouts whose advantage is not 0.",
        "batch/left_out": "Number of submissions that could not be trained on.",
        "batch/regraded": "Number of rollouts of unreplayed work whose claimed reward is not the trainer's, which is"
        " the one that it learns from.",
        "time/wait_for_batch": "Seconds from the moment that a policy is on disk until the files of the step are there"
        " and decoded.",
        "time/update": "Seconds of the updates, with everything that is recomputed for them.",
        "time/save": "Seconds until policy and checkpoint are on disk; 0 if the process ended in between.",
        "time/step": "Seconds of the step: the sum of the three times above.",
        "trainer/idle_ratio": "Share of the step that was spent waiting for the batch.",
        "perf/tokens_per_second": "`batch/tokens` per second of the whole step.",
        "perf/samples_per_second": "`batch/samples` per second of the whole step.",
        "perf/flops": "Floating-point operations of the updates, without those repeated to save memory: 6 per weight"
        " and token, 4 if the weight is frozen, and those of the head for completion tokens only.",
        "perf/mfu": "Share of `peak_flops` of all devices that the updates used; absent if `peak_flops` is not set.",
        "perf/peak_memory_bytes": "Largest memory since the start, in bytes: allocated by torch on a GPU, resident on a"
        " CPU.",
    },
    "policy": {
        "manifest_hash": "Hash of the policy's manifest, which the chain holds.",
        "time": "Time at which the policy was on chain, in Unix seconds.",
        "time/publish": "Seconds of cutting the policy into shards in the origin.",
        "time/wait_for_chain": "Seconds from the shards until the hash was on chain.",
    },
    "evaluation": {
        "reward": "Mean reward on held-out questions.",
        "n": "Number of completions in that mean.",
    },
    "alarm": {
        "sign": "Name of the metric of `update` that gives the alarm.",
        "value": "Newest median of that metric.",
        "limit": "Value that the median has reached.",
    },
}
