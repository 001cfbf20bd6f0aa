"""The loop of every rank except rank 0. Each carries out its share of rank 0's commands until rank 0 stops.

These ranks communicate only with rank 0. They use no coordinator, chain or origin, and write no metrics.
"""

import signal
from contextlib import closing
from pathlib import Path

import torch

from covey.runtime.log import get_logger
from trainer.algorithm.learner import Learner
from trainer.algorithm.logprobs import Recomputer
from trainer.algorithm.lora import build_policy
from trainer.checkpoints.checkpoint import load_state, prepare_shards
from trainer.checkpoints.saver import Saver
from trainer.config import LearningSettings
from trainer.distributed.commands import RankCommand, Verb
from trainer.distributed.ranks import Ranks, explain_lost_rank
from trainer.distributed.sharding import gather_weights
from trainer.factories import build_learner, decode_plan


def follow(config: LearningSettings, ranks: Ranks) -> None:
    """Carry out rank 0's commands until it stops.

    Raises OperatorError("rank_lost") if rank 0 has ended or is silent, and the errors of the commands.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 receives the signal, too, and finishes the current step
        signal.signal(number, signal.SIG_IGN)
    get_logger().info("rank started", rank=ranks.rank)
    order = ranks.receive()
    if order.verb is Verb.STOP:
        return
    learner, recomputer = build_learner(*decode_plan(order.text, config), ranks)
    carry_out(ranks, learner, recomputer)


def carry_out(ranks: Ranks, learner: Learner, recomputer: Recomputer | None) -> None:
    """Carry out rank 0's commands until it stops. A failed write in the background is raised at the next command."""
    with closing(Saver()) as saver:
        while (order := ranks.receive()).verb is not Verb.STOP:
            saver.check()
            with explain_lost_rank():
                do_share(order, learner, recomputer, saver)


def do_share(order: RankCommand, learner: Learner, recomputer: Recomputer | None, saver: Saver) -> None:
    """Carry out this rank's share of rank 0's actions in `Ranks.together`. Files are written by `saver`."""
    match order.verb:
        case Verb.LEARN:
            learner.learn(order.batches)
        case Verb.RECOMPUTE:
            assert recomputer is not None, "rank 0's settings must apply to this rank"
            recomputer.compute(None, order.batches[0].samples)
        case Verb.GATHER:
            gather_weights(build_policy(learner.model, torch.bfloat16), learner.copies)
        case Verb.SAVE:
            saver.wait()  # its copies are overwritten
            saver.start(prepare_shards(learner, Path(order.text)))
        case Verb.RESTORE:
            load_state(learner, Path(order.text))
