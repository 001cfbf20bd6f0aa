"""The ranks beside rank 0: each does its share of what rank 0 orders, until it is let go.

Called by `app`.  They speak with rank 0 alone: no coordinator, no chain, no origin, no log on disk.
"""

import signal
from pathlib import Path

import torch

from covey.runtime.log import get_logger
from trainer.algorithm.learner import Learner
from trainer.algorithm.logprobs import Recomputer
from trainer.checkpoints.checkpoint import load_state, save_state
from trainer.config import TrainerConfig
from trainer.distributed.commands import RankCommand, Verb
from trainer.distributed.ranks import Ranks, explain_lost_rank
from trainer.distributed.sharding import gather_weights
from trainer.factories import build_learner, decode_plan


def follow(config: TrainerConfig, ranks: Ranks) -> None:
    """Until rank 0 stops; raise OperatorError("rank_lost") where it is gone, and whatever a share raises."""
    for number in (signal.SIGINT, signal.SIGTERM):  # which rank 0 gets too, and ends the step under way
        signal.signal(number, signal.SIG_IGN)
    get_logger().info("follows", rank=ranks.rank)
    order = ranks.receive()
    if order.verb is Verb.STOP:
        return
    learner, recomputer = build_learner(*decode_plan(order.text, config), ranks)
    while (order := ranks.receive()).verb is not Verb.STOP:
        with explain_lost_rank():
            do_share(order, learner, recomputer)


def do_share(order: RankCommand, learner: Learner, recomputer: Recomputer | None) -> None:
    """What rank 0 does in `together`."""
    match order.verb:
        case Verb.LEARN:
            learner.learn(order.batches)
        case Verb.RECOMPUTE:
            assert recomputer is not None, "rank 0's settings are this one's"
            recomputer.compute(None, order.batches[0].samples)
        case Verb.GATHER:
            gather_weights(learner.model, torch.bfloat16)
        case Verb.SAVE:
            save_state(learner, Path(order.text))
        case Verb.RESTORE:
            load_state(learner, Path(order.text))
