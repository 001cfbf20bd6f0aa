"""Cheats that compute something else than they claim: other weights, other noise, other temperature."""

import torch

from covey.cheats import BestOfN, QuantizedWeights, score_spelling
from covey.engines.hf import HuggingFaceEngine
from covey.model.files import load_model, load_tokenizer
from covey.model.tiny import tiny_folder
from covey.protocol.verdict import Reason
from tests.cheats.content import Cheat
from tests.fakes.pool import make_hash
from tests.fakes.tools import Work, Worker, make_model_params, make_task


class Quantized(Cheat):
    """The shipped demo's cheat: five bits of every weight's mantissa are gone."""

    reason = Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        engine = QuantizedWeights(HuggingFaceEngine())
        engine.load_policy(tiny_folder(), 0)
        return Worker(worker.wallet, worker.params, engine).work()


class BestOfFour(Cheat):
    """The shipped demo's cheat: four seeds a slot, the best is claimed as the slot's."""

    reason = Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return Worker(worker.wallet, worker.params, BestOfN(worker.engine, n=4, score=score_spelling)).work()


class StaleWeights(Cheat):
    """An earlier policy: every weight about a hundredth off."""

    reason = Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        model = load_model(tiny_folder(), "float32")
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + 1e-2 * torch.randn(weight.shape, generator=generator))
        stale = HuggingFaceEngine.from_model(model, load_tokenizer(tiny_folder()))
        return Worker(worker.wallet, worker.params, stale).work()


class OtherTemperature(Cheat):
    """Samples more greedily than the pool asks for: likelier to be right."""

    reason = Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        cold = make_model_params(model={"max_prompt_tokens": 64, "max_completion_tokens": 5, "temperature": 0.3})
        return worker.work(params=cold)


class SeedsOfAnotherPolicy(Cheat):
    """Seeds and prompts of an earlier manifest: old work, served again."""

    reason = Reason.WRONG_PROMPT

    def cheat(self, worker: Worker) -> Work:
        return worker.work(make_task(manifest_hash=make_hash("earlier")))


ENGINES: tuple[type[Cheat], ...] = (Quantized, BestOfFour, StaleWeights, OtherTemperature, SeedsOfAnotherPolicy)
