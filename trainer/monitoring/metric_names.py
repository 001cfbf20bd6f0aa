"""Meaning of each value in a line of `metrics.jsonl`, by event and name. docs/reference/metrics.md is generated from
it.
"""

from collections.abc import Mapping

TYPE_SHARE, TYPE_REWARD = "task_type/{}/share", "task_type/{}/reward"
"""Names of the metrics of a type of tasks, with a place for the name of the type."""
METRICS: Mapping[str, Mapping[str, str]] = {
    "update": {
        "reward/mean": "Mean reward of the batch's rollouts.",
        "reward/task_std": "Standard deviation of the task component of the reward over the batch's rollouts. 0 if all "
        "earn the same.",
        "reward/task": "Mean of the task component of the reward, before the length penalty.",
        "reward/length_penalty": "Mean length penalty that was subtracted from the reward.",
        "policy/loss": "Mean loss of the updates.",
        "policy/ratio": "Mean probability ratio of a token between the policy and the policy that sampled it, "
        "before clipping.",
        "policy/entropy": "Mean entropy of the policy, in nats per token.",
        "policy/outside_clip": "Share of tokens whose probability ratio to the policy that sampled is outside 1 - "
        "`loss.epsilon` to 1 + `loss.epsilon_high`, including tokens that are not clipped.",
        "policy/mismatch_kl": "Mean KL divergence between the policy that sampled and the policy in training (k3 "
        "estimator), in nats per token.",
        "policy/mismatch_kl_max": "Largest contribution of a single token to `mismatch_kl`, in nats.",
        "policy/kl": "Mean KL divergence from the policy of step 0, estimated by `loss.kl_estimator`, in nats "
        "per token. 0 if `loss.beta` is 0.",
        "policy/clip_ratio": "Share of tokens whose gradient was removed by clipping or changed by a bound of the "
        "importance weight. With one update per step, a decoupled objective never clips.",
        "policy/masked": "Share of tokens without a policy gradient because of `loss.mask` or a masking "
        "`loss.importance_sampling_mode`.",
        "policy/claims_replaced": "Share of tokens whose claimed log-probability was replaced by the trainer's "
        "own, because the two differ by more than with any replayed claim. 0 unless `loss.old_policy` is claimed.",
        "optim/grad_norm": "Largest gradient norm of the updates, before clipping to `optim.max_grad_norm`.",
        "optim/learning_rate": "Learning rate of the last update.",
        "staleness_mean": "Mean staleness of the rollouts: number of steps between the policy that sampled and the "
        "policy in training.",
        "staleness_max": "Maximum staleness of the rollouts, in steps.",
        "batch/samples": "Number of rollouts in the batch.",
        "batch/tokens": "Number of completion tokens in the updates. With the online filter, tokens of dead "
        "groups are not included.",
        "batch/completion_tokens": "Mean length of a completion, in tokens.",
        "batch/truncated_share": "Share of completions that were cut at the token limit.",
        "batch/unanswered_share": "Share of the finished completions that contain no extractable answer, in a sample: "
        "the first group of each submission.",
        "batch/live_share": "Share of rollouts with a nonzero advantage.",
        TYPE_SHARE: "Share of the batch's rollouts with this type of tasks: the kind of the environment, with its "
        "option `name` if it has one. Absent in `covey train`.",
        TYPE_REWARD: "Mean reward of these rollouts.",
        "batch/left_out": "Number of submissions that were skipped because they could not be trained on.",
        "batch/regraded": "Number of rollouts without a replay whose claimed reward differs from the trainer's "
        "recomputed reward. The recomputed reward is used.",
        "time/wait_for_batch": "Seconds from the end of the previous step until the rollout files of this step are "
        "downloaded and decoded.",
        "time/update": "Seconds spent on the updates, including recomputed log-probabilities.",
        "time/save": "Seconds until the next step can begin: until policy and checkpoint are written, or on a GPU "
        "and in `covey train` until they are copied. 0 if the process ended in between.",
        "time/step": "Seconds for the whole step: the sum of the three times above.",
        "trainer/idle_ratio": "Share of the step's time that was spent waiting for the batch.",
        "perf/tokens_per_second": "Tokens in `batch/tokens` per second of the step.",
        "perf/samples_per_second": "Rollouts in `batch/samples` per second of the step.",
        "perf/flops": "Floating-point operations of the updates, without those repeated to save memory: 6 per "
        "weight and token, or 4 if the weight is frozen. The head counts for completion tokens "
        "only.",
        "perf/mfu": "Share of the `log.peak_flops` of all devices that the updates used. Absent if `log.peak_flops` "
        "is not set.",
        "perf/peak_memory_bytes": "Peak memory since the start, in bytes: allocated by torch on a GPU, resident "
        "on a CPU.",
    },
    "policy": {
        "record_hash": "Hash of the policy's record, as published on chain.",
        "time": "Time at which the policy was published on chain, in Unix seconds.",
        "time/publish": "Seconds for writing the policy to the origin, including its delta.",
        "time/wait_for_chain": "Seconds from then until the hash was on chain.",
    },
    "evaluation": {
        "reward": "Mean reward on held-out prompts.",
        "standard_error": "Standard error of the mean reward, from the mean of each prompt. 0 for a single prompt.",
        "lenient_reward": "Mean reward on the same completions with the extraction `eval.lenient_extraction` of "
        "`covey train`. Absent if that is not set.",
        "n": "Number of completions that the mean reward is computed from.",
    },
    "alarm": {
        "sign": "Name of the metric of kind `update` that raised the alarm of a collapse, or sign that the run cannot "
        "learn: `truncated`, `no_answer`, `constant_reward`, `no_live_group` or `zero_gradient`.",
        "value": "Newest median of this metric or, for a sign that the run cannot learn, its mean over the newest "
        "steps.",
        "limit": "Threshold that the value has crossed.",
        "advice": "What to change, with the name of the setting. Absent if the alarm is that of a collapse.",
    },
    "pause": {
        "dead_steps": "Number of consecutive dead steps after which the trainer had new tasks paused.",
    },
}
