"""Policies that remember rightly, and whose calls, actions, options or numbers are wrong, one thing each."""

import numpy as np
import torch
from audit.broken.alone import Alone
from audit.broken.case import SEVERAL, Case
from torch import nn


class ShapesMissing(Alone):
    def set_shapes(self, td, B, T):
        pass


class ShapesSwapped(Alone):
    def set_shapes(self, td, B, T):
        super().set_shapes(td, T, B)


class ShapesInAnotherDtype(Alone):
    def set_shapes(self, td, B, T):
        super().set_shapes(td, B, T)
        td["bptt"] = td["bptt"].int()


class ValuesWithAnExtraDimension(Alone):
    def act(self, td, logits, value):
        return super().act(td, logits, value).set("values", value.unsqueeze(-1))


class NoEntropy(Alone):
    def judge(self, td, actions, logits, value):
        return super().judge(td, actions, logits, value).exclude("entropy")


class ReturnedFlat(Alone):
    def forward(self, td, state=None, action=None):
        td = super().forward(td, state, action)
        return td if action is None else td.reshape(-1)


class ObservationsOverwritten(Alone):
    def encode(self, observations):
        observations.clamp_(-0.1, 0.1)
        return super().encode(observations)


class FlagsOverwritten(Alone):
    def starts(self, td, B, T):
        starts = td["dones"].logical_or_(td["truncateds"])
        return starts.reshape(B, T).t()


class LogProbOfAnotherAction(Alone):
    def log_prob_of(self, log_probs, actions):
        return super().log_prob_of(log_probs, (actions + 1) % log_probs.shape[-1])


class AlwaysActionZero(Alone):
    def act(self, td, logits, value):
        td = super().act(td, logits, value)
        return td.set("actions", torch.zeros_like(td["actions"]))


class MostLikelyOnly(Alone):
    def draw(self, log_probs):
        return log_probs.argmax(-1)


class LogitsForLogProbs(Alone):
    def act(self, td, logits, value):
        return super().act(td, logits, value).set("full_log_probs", logits)

    def judge(self, td, actions, logits, value):
        return super().judge(td, actions, logits, value).set("full_log_probs", logits)


class EntropyUpsideDown(Alone):
    def judge(self, td, actions, logits, value):
        td = super().judge(td, actions, logits, value)
        return td.set("entropy", -td["entropy"])


class OneActionTooMany(Alone):
    def draw(self, log_probs):
        return super().draw(log_probs) + 1

    def log_prob_of(self, log_probs, actions):
        return super().log_prob_of(log_probs, (actions - 1).clamp(min=0))


class AveragedOverChoices(Alone):
    """Two choices at once, whose log-probabilities should be added."""

    def __init__(self, env, **options):
        one = type("OneChoice", (), {"single_observation_space": env.single_observation_space})
        one.single_action_space = type("Choices", (), {"n": 5})
        super().__init__(one, **options)

    def forward(self, td, state=None, action=None):
        if action is None:
            return super().forward(td)
        self.given = action.reshape(-1, 2)
        return super().forward(td, state, action[..., 0])

    def act(self, td, logits, value):
        parts = self.parts(logits)
        actions = torch.stack([torch.multinomial(part.exp(), 1).squeeze(-1) for part in parts], -1)
        td["actions"], td["act_log_prob"] = actions, self.whole_batches(parts, actions)
        td["values"], td["full_log_probs"] = value, torch.cat(parts, -1)
        return td

    def judge(self, td, actions, logits, value):
        parts = self.parts(logits)
        td["act_log_prob"] = self.whole_batches(parts, self.given)
        td["entropy"] = -sum((part.exp() * part).sum(-1) for part in parts)
        td["value"], td["full_log_probs"] = value, torch.cat(parts, -1)
        return td

    def parts(self, logits):
        return [part.log_softmax(-1) for part in logits.split([3, 2], -1)]

    def whole_batches(self, parts, actions):
        chosen = [part.gather(-1, actions[:, i : i + 1]) for i, part in enumerate(parts)]
        return torch.cat(chosen, -1).mean(-1)


class ClippingHardCodedOff(Alone):
    def __init__(self, env, clip_range=0.0, **options):
        super().__init__(env, clip_range=0.0, **options)


class NoOptions(Alone):
    def __init__(self, env):
        super().__init__(env)


class OnlyLinearClipped(Alone):
    @torch.no_grad()
    def clip_weights(self):
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.weight.clamp_(-self.clip_range, self.clip_range)
                module.bias.clamp_(-self.clip_range, self.clip_range)


class NoClipping(Alone):
    clip_weights = None


class PullWithoutGradient(Alone):
    def l2_init_loss(self):
        return sum(p.detach().square().sum() for p in self.parameters())


class FixedPrecision(Alone):
    def recall(self, ids):
        h, c = super().recall(ids)
        return h.float(), c.float()


class CoarseNumbers(Alone):
    """Fine in float32, and far off in bfloat16: log-probabilities as differences of large numbers."""

    def encode(self, observations):
        return super().encode(observations + 3000) - super().encode(observations * 0 + 3000)


class BranchesOnATensor(Alone):
    def clear(self, h, c, start):
        return super().clear(h, c, start) if start.any() else (h, c)


class HiddenFromTheCompiler(Alone):
    @torch._dynamo.disable
    def forward(self, td, state=None, action=None):
        return super().forward(td, state, action)


class LuckOfItsOwn(Alone):
    def draw(self, log_probs):
        chances = log_probs.exp().detach().double().numpy()
        return torch.tensor([np.random.default_rng().choice(len(p), p=p / p.sum()) for p in chances])


class UnusedPart(Alone):
    def __init__(self, env, **options):
        super().__init__(env, **options)
        self.forgotten = nn.Linear(3, 3)


class CriticCutOff(Alone):
    def judge(self, td, actions, logits, value):
        return super().judge(td, actions, logits, value.detach())


class Exploding(Alone):
    def act(self, td, logits, value):
        return super().act(td, logits, value * 1e6)

    def judge(self, td, actions, logits, value):
        return super().judge(td, actions, logits, value * 1e6)


class NoSuchLearning(Alone):
    def judge(self, td, actions, logits, value):
        raise NotImplementedError("only plays")


class MemoryNotCopied(Alone):
    def get_memory(self):
        rows = range(CAPACITY_SHOWN)
        return {row: self.memory[row, :, :16] for row in rows}, {row: self.memory[row, :, 16:] for row in rows}


class MemoryWithoutItsRows(Alone):
    """Gives back what it was given in another order of rows."""

    def set_memory(self, memory):
        h, c = memory
        rows = sorted(h)
        super().set_memory(
            ({i: h[row] for i, row in enumerate(reversed(rows))}, {i: c[row] for i, row in enumerate(rows)})
        )


class ResetThatDoesNothing(Alone):
    def reset_memory(self):
        pass


class ResetOfUnknownRowFails(Alone):
    def reset_env_memory(self, env_id):
        if env_id not in self.get_memory()[0]:
            raise KeyError(env_id)
        super().reset_env_memory(env_id)


class ResetOfOneRowClearsAll(Alone):
    def reset_env_memory(self, env_id):
        self.reset_memory()


class DeniesItsMemory(Alone):
    def has_memory(self):
        return False


class NoInterface(Alone):
    reset_env_memory = set_memory = get_memory = None


class MemoryAmongTheWeights(Alone):
    def store(self, ids, h, c):
        super().store(ids, h, c)
        self.register_buffer("last", h[0].detach())


CAPACITY_SHOWN = 4096
CASES = [
    Case(ShapesMissing, {"td_fields"}, "bptt is not set"),
    Case(ShapesSwapped, {"td_fields"}, "bptt is 6, not 1"),
    Case(ShapesInAnotherDtype, {"td_fields"}, "int32"),
    Case(ValuesWithAnExtraDimension, {"td_fields"}, "values is [6, 1], not [6]"),
    Case(NoEntropy, {"td_fields"}, "entropy is missing"),
    Case(ReturnedFlat, {"td_fields"}, "batch size [48], not [6, 8]"),
    Case(ObservationsOverwritten, {"td_fields"}, "env_obs is changed in place"),
    Case(FlagsOverwritten, {"td_fields"}, "dones is changed in place"),
    Case(LogProbOfAnotherAction, {"action_log_prob"}, "not that of the action"),
    Case(AlwaysActionZero, {"action_log_prob", "replay"}, "not that of the action"),
    Case(MostLikelyOnly, {"action_log_prob"}, "never drawn"),
    Case(LogitsForLogProbs, {"action_log_prob"}, "add up"),
    Case(EntropyUpsideDown, {"action_log_prob"}, "the entropy"),
    Case(OneActionTooMany, {"action_log_prob"}, "not in Discrete(4)"),
    Case(AveragedOverChoices, {"action_log_prob"}, "off by", SEVERAL),
    Case(
        ClippingHardCodedOff, {"configuration", "weight_clipping"}, "clip_range=0.05 was given, and the policy has 0.0"
    ),
    Case(NoOptions, {"configuration"}, "does not take the options"),
    Case(OnlyLinearClipped, {"configuration", "weight_clipping"}, "lstm.weight_ih_l0"),
    Case(NoClipping, {"configuration", "weight_clipping"}, "no clip_weights()"),
    Case(PullWithoutGradient, {"configuration"}, "l2_init_loss() has no gradient"),
    Case(FixedPrecision, {"precision"}, "float64 raises"),
    Case(CoarseNumbers, {"precision"}, "bfloat16"),
    Case(BranchesOnATensor, {"compile"}, "does not compile in one graph"),
    Case(HiddenFromTheCompiler, {"compile"}, "does not compile in one graph"),
    Case(LuckOfItsOwn, {"determinism"}, "of actions"),
    Case(UnusedPart, {"gradient_health"}, "no gradient ever reaches forgotten"),
    Case(CriticCutOff, {"gradient_health"}, "no gradient ever reaches critic"),
    Case(Exploding, {"gradient_health"}, "exploding"),
    Case(NoSuchLearning, {"modes"}, "only plays"),
    Case(MemoryNotCopied, {"memory_interface"}, "it is no copy"),
    Case(MemoryWithoutItsRows, {"memory_interface", "replay"}),
    Case(ResetThatDoesNothing, {"memory_interface"}, "after reset_memory()"),
    Case(ResetOfUnknownRowFails, {"memory_interface"}, "KeyError"),
    Case(ResetOfOneRowClearsAll, {"memory_interface"}, "changes other rows"),
    Case(DeniesItsMemory, {"memory_interface"}, "has_memory() is False"),
    Case(NoInterface, {"memory_interface", "replay"}, "no get_memory, set_memory, reset_env_memory"),
    Case(MemoryAmongTheWeights, {"memory_interface"}, "state_dict()"),
]
