"""AuditContext: what every check receives: the policy, fresh copies of it, and reproducible random scenarios."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.adapters.registry import adapt
from engram.audit.adapters.td import TdAdapter
from engram.audit.result import CannotAuditError, DoesNotApplyError
from engram.audit.retained import copy_policy
from engram.audit.scenario import Scenario, play, random_actions, random_scenario
from engram.audit.source_location import error_location
from engram.env.spec import EnvSpec
from engram.settings import UserError

EXACT = 1e-5  # largest difference between float32 numbers of size 1 that should be equal
VISIBLE = 1e-3  # how much memory should change an output, for faults to show clearly


class AuditContext:
    rows, steps = 6, 8

    def __init__(
        self,
        make: Callable[..., nn.Module],
        spec: EnvSpec,
        seed: int = 0,
        adapter: str = "auto",
        takes_options: bool = False,
    ) -> None:
        """`make()` returns the policy; with `takes_options`, its keyword arguments are the policy's settings."""
        self.make, self.spec, self.seed, self.takes_options = make, spec, seed, takes_options
        self.original = self._build(adapter)
        self.learning_error = self._try_learning()
        self.mode_matters = self._mode_matters()
        self._test_reset(self.original)
        self.visible, self.memory_effect = self._with_visible_memory()

    @property
    def policy(self) -> nn.Module:
        return self.original.policy

    def adapter(self, original_weights: bool = False, own_mode: bool = False) -> PolicyAdapter:
        """A fresh copy with empty memory; with larger weights if memory hardly shows in the original outputs.

        If training mode changes the outputs (dropout, for example), one check reports it. The others use evaluation
        mode, unless they ask for the policy's own mode.
        """
        adapter = copy_adapter(self.original if original_weights else self.visible)
        if self.mode_matters and not own_mode:
            adapter.training_mode = False
        return adapter

    def adapt_like_original(self, policy: nn.Module) -> PolicyAdapter:
        """The same kind of adapter for another policy of the same class."""
        adapter = adapt(policy, self.spec, self.original.kind)
        if isinstance(adapter, TdAdapter) and isinstance(self.original, TdAdapter):
            adapter.reset_works = self.original.reset_works
        return adapter

    def generator(self, salt: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * 1000 + salt)

    def scenario(
        self, salt: int = 0, rows: int | None = None, steps: int | None = None, end_chance: float = 0
    ) -> Scenario:
        return random_scenario(self.spec, rows or self.rows, steps or self.steps, self.generator(salt), end_chance)

    def segment(
        self, salt: int = 0, rows: int | None = None, steps: int | None = None, end_chance: float = 0
    ) -> Segment:
        scenario = self.scenario(salt, rows, steps, end_chance)
        return scenario.segment(random_actions(self.spec, (scenario.rows, scenario.steps), self.generator(salt + 1)))

    def needs_memory(self) -> None:
        """Skip the check if the outputs do not depend on the past."""
        if self.memory_effect <= EXACT:
            raise DoesNotApplyError("the outputs do not depend on the past: see memory_used")

    def _build(self, name: str) -> PolicyAdapter:
        torch.manual_seed(self.seed)
        try:
            policy = self.make()
        except UserError:
            raise
        except Exception as error:
            raise CannotAuditError(f"the policy cannot be built: {describe(error)}") from error
        batch = self.scenario(99, steps=1).batch(slice(0, self.rows), 0)
        adapter = self._adapt(policy, name)
        adapter.policy.train()
        try:
            with torch.no_grad():
                if any(isinstance(p, UninitializedParameter) for p in adapter.policy.parameters()):
                    adapter.act(batch)  # initialises lazy layers
                    adapter = self._adapt(policy, name)
                copy_adapter(adapter).act(batch)
        except Exception as error:
            raise CannotAuditError(
                f"{type(adapter.policy).__name__} cannot be called to act on {self.spec.name} (played as "
                f"'{adapter.kind}'): {describe(error)}"
            ) from error
        return adapter

    def _adapt(self, policy: nn.Module, name: str) -> PolicyAdapter:
        try:
            return adapt(policy, self.spec, name)
        except UserError:
            raise
        except Exception as error:
            raise CannotAuditError(f"no adapter can play a {type(policy).__name__}: {describe(error)}") from error

    @torch.no_grad()
    def _mode_matters(self) -> bool:
        """Whether training and evaluation mode give different outputs."""
        scenario, outputs = self.scenario(93, steps=2), []
        try:
            for mode in (True, False):
                copy = copy_adapter(self.original)
                copy.training_mode = mode
                torch.manual_seed(self.seed)
                outputs.append(play(copy, scenario).numbers)
                if not self.learning_error:
                    outputs[-1] = torch.cat([outputs[-1].flatten(), copy.learn(self.segment(92)).numbers().flatten()])
        except Exception:  # the checks report it
            return False
        return max_difference(outputs[0], outputs[1]) > tolerance(outputs[0])

    def _test_reset(self, adapter: PolicyAdapter) -> None:
        """If `reset_memory` does not work, one check reports it, and the others restore a blank copy instead."""
        if isinstance(adapter, TdAdapter) and adapter.reset_works:
            copy, scenario = copy_adapter(adapter), self.scenario(98, steps=3)
            copy.training_mode = False if self.mode_matters else None
            try:
                with torch.no_grad():
                    first = play(copy, scenario)
                    copy.reset()
                    again = play(copy, scenario)
            except Exception:
                adapter.reset_works = False
                return
            adapter.reset_works = max_difference(first.numbers, again.numbers) <= tolerance(first.numbers)

    def _with_visible_memory(self) -> tuple[PolicyAdapter, float]:
        """Memory faults do not depend on the weights, but heads initialised near zero hide them."""
        effect = self._memory_effect(self.original)
        if effect >= VISIBLE:
            return self.original, effect
        perturbed = copy_adapter(self.original)
        perturb_weights(perturbed.policy, self.generator(97))
        if isinstance(perturbed, TdAdapter):
            perturb_weights(perturbed._blank, self.generator(97))
        perturbed_effect = self._memory_effect(perturbed)
        return (perturbed, perturbed_effect) if perturbed_effect > effect else (self.original, effect)

    @torch.no_grad()
    def _memory_effect(self, adapter: PolicyAdapter) -> float:
        """How much two different pasts change the outputs for the same observation."""
        scenario = self.scenario(96, steps=3)
        other = scenario.with_other_past(slice(None), 2, self.generator(95), self.spec)
        outputs: list[Tensor] = []
        try:
            for each in (scenario, other):
                copy = copy_adapter(adapter)
                copy.training_mode = False if self.mode_matters else None
                torch.manual_seed(self.seed)
                outputs.append(play(copy, each).numbers[:, -1])
        except Exception:  # the checks report it
            return torch.inf
        return max_difference(outputs[0], outputs[1])

    def _try_learning(self) -> str:
        """The error of the simplest learning call, if it raises one."""
        try:
            copy_adapter(self.original).learn(self.segment(94))
        except Exception as error:
            return describe(error)
        return ""


def copy_adapter(adapter: PolicyAdapter) -> PolicyAdapter:
    return copy_policy(adapter, adapter.policy)


def abs_difference(one: Tensor, other: Tensor) -> Tensor:
    """Infinite where only one is infinite, or either is NaN."""
    return torch.where(one == other, 0.0, (one - other).abs().nan_to_num(nan=torch.inf))


def max_difference(one: Tensor, other: Tensor) -> float:
    return float(abs_difference(one, other).max()) if one.numel() else 0.0


def tolerance(*numbers: Tensor, exact: float = EXACT) -> float:
    """Largest difference between numbers of this size that should be equal."""
    finite = [part[part.isfinite()].abs() for part in numbers]
    return exact * max(1.0, *(float(part.max()) if part.numel() else 0.0 for part in finite))


@torch.no_grad()
def perturb_weights(policy: nn.Module, generator: torch.Generator) -> None:
    """Add noise to every weight, so that none is near zero."""
    for parameter in policy.parameters():
        inputs = parameter[0].numel() if parameter.dim() > 1 else 25
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.add_((0.5 / max(inputs, 1) ** 0.5) * noise.to(parameter))


def describe(error: BaseException) -> str:
    """An error in one line: what, in which line of the policy, and while doing what."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if len(text) < 400 else f"{text[:400]}…"
    where = error_location(error)
    notes: list[Any] = getattr(error, "__notes__", [])
    return " ".join([f"{type(error).__name__}: {text}", *([f"in {where}"] if where else []), *notes[:1]])
