"""AuditContext, the argument of every check: the policy, fresh copies of it, and reproducible random scenarios."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.adapters.registry import adapt
from engram.audit.adapters.td import TdAdapter
from engram.audit.difference import EXACT, max_difference, tolerance
from engram.audit.memory_effect import clock_effect, learned_start, with_visible_memory
from engram.audit.result import CannotAuditError, DoesNotApplyError
from engram.audit.scenario import Scenario, play, random_actions, random_scenario, seed_everything
from engram.audit.source_location import error_location
from engram.env.spec import EnvSpec
from engram.settings import UserError


class AuditSizes(NamedTuple):
    """The sizes of the run that is rehearsed."""

    rows: int = 64  # environment rows, and rows of a minibatch
    horizon: int = 64  # steps of a segment
    steps: int = 500  # acting steps without an episode end


DEFAULT_SIZES = AuditSizes()
QUICK = AuditSizes(rows=12, horizon=12, steps=60)


class AuditContext:
    rows, steps = 6, 8  # of checks that do not depend on size
    every_row = slice(0, rows)

    def __init__(
        self,
        make: Callable[..., nn.Module],
        spec: EnvSpec,
        seed: int = 0,
        adapter: str = "auto",
        takes_options: bool = False,
        sizes: AuditSizes | None = None,
    ) -> None:
        """`make()` returns the policy; with `takes_options`, its keyword arguments are the policy's settings."""
        self.make, self.spec, self.seed, self.takes_options = make, spec, seed, takes_options
        self.sizes = sizes or DEFAULT_SIZES
        self.failed: set[str] = set()  # the checks that failed so far
        self.original = self._build(adapter)
        self.learning_error = self._try_learning()
        self.random_outputs = self._random_outputs(None)  # in the mode of the training loop
        self.random_in_evaluation = self._random_outputs(False)
        self.mode_matters = self._mode_matters()
        self._test_reset(self.original)
        self.visible, self.past_effect = with_visible_memory(self)
        self.memory_effect = self.past_effect if self.past_effect > EXACT else clock_effect(self, self.visible)
        self.learned_start = learned_start(self)  # the parameters of a learned initial state, if there is one

    @property
    def ids(self) -> list[int]:
        """The environment ids of the rows."""
        return list(range(self.rows))

    @property
    def policy(self) -> nn.Module:
        return self.original.policy

    def adapter(self, original_weights: bool = False, own_mode: bool = False) -> PolicyAdapter:
        """A fresh copy with empty memory; its weights are perturbed if memory hardly changes the original outputs.

        If training mode changes the outputs (dropout, for example), one check reports it. The others use evaluation
        mode, unless they ask for the policy's own mode.
        """
        adapter = (self.original if original_weights else self.visible).copy()
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

    def fresh_start(self, played: Any) -> Any:
        """A scenario or segment whose first step is flagged as a start, as the first step of every episode is.

        The flag may bring in a learned initial state, or leave out the previous action.
        """
        dones = played.dones.clone()
        dones[:, 0] = True
        return replace(played, dones=dones)

    def needs_memory(self) -> None:
        """Skip the check if the outputs do not depend on the past."""
        if self.memory_effect <= EXACT:
            raise DoesNotApplyError("the outputs do not depend on the past: see memory_used")

    def needs_declared_memory(self) -> None:
        """Skip the check if the policy has no memory and says so."""
        declared = getattr(self.policy, "has_memory", None)
        if self.memory_effect <= EXACT and callable(declared) and declared() is False:
            raise DoesNotApplyError("the policy has no memory, as has_memory() says")

    def needs_repeatable_outputs(self) -> None:
        """Skip the check if the outputs are random, even in evaluation mode."""
        if self.random_in_evaluation:
            raise DoesNotApplyError("the policy draws random numbers by itself: see determinism")

    def _build(self, name: str) -> PolicyAdapter:
        torch.manual_seed(self.seed)
        with cannot_audit("the policy cannot be built"):
            policy = self.make()
        batch = self.scenario(99, steps=1).batch(self.every_row, 0)
        adapter = self._adapt(policy, name)
        adapter.policy.train()
        try:
            with torch.no_grad():
                if any(isinstance(p, UninitializedParameter) for p in adapter.policy.parameters()):
                    adapter.act(batch)  # initialises lazy layers
                    adapter = self._adapt(policy, name)
                adapter.copy().act(batch)
        except Exception as error:
            raise CannotAuditError(
                f"{type(adapter.policy).__name__} cannot be called to act on {self.spec.name} (played as "
                f"'{adapter.kind}'): {describe(error)}"
            ) from error
        return adapter

    def _adapt(self, policy: nn.Module, name: str) -> PolicyAdapter:
        with cannot_audit(f"no adapter can play a {type(policy).__name__}"):
            return adapt(policy, self.spec, name)

    @torch.no_grad()
    def _random_outputs(self, training_mode: bool | None) -> str:
        """Which outputs change with the random seed, if any: acting, learning, or both."""
        found = []
        segment, scenario = self.segment(92), self.scenario(93, steps=4, end_chance=0.3)
        for name in ("acting", "learning"):
            outputs = []
            for seed in (1, 2):
                copy = self.original.copy()
                copy.training_mode = training_mode
                seed_everything(seed)
                try:
                    if name == "learning":
                        outputs.append(copy.learn(segment).numbers())
                    else:
                        played = play(copy, scenario).numbers
                        copy.reset()
                        copy.fixed_sampling = False  # so that noise is seen, whichever function samples it
                        seed_everything(seed)
                        first = copy.act(scenario.batch(slice(0, scenario.rows), 0)).numbers()
                        outputs.append(torch.cat([played, first.unsqueeze(1)], 1))
                except Exception:  # the checks report it
                    break
            if len(outputs) == 2 and max_difference(*outputs) > tolerance(outputs[0]):
                found.append(name)
        return " and ".join(found)

    @torch.no_grad()
    def _mode_matters(self) -> bool:
        """Whether training and evaluation mode give different outputs."""
        scenario, outputs = self.scenario(93, steps=2), []
        try:
            for mode in (True, False):
                copy = self.original.copy()
                copy.training_mode = mode
                seed_everything(self.seed)
                outputs.append(play(copy, scenario).numbers)
                if not self.learning_error:
                    outputs[-1] = torch.cat([outputs[-1].flatten(), copy.learn(self.segment(92)).numbers().flatten()])
        except Exception:  # the checks report it
            return False
        return max_difference(outputs[0], outputs[1]) > tolerance(outputs[0])

    def _test_reset(self, adapter: PolicyAdapter) -> None:
        """If `reset_memory` does not work, one check reports it, and the others restore a blank copy instead."""
        if isinstance(adapter, TdAdapter) and adapter.reset_works:
            copy, scenario = adapter.copy(), self.scenario(98, steps=3)
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

    def _try_learning(self) -> str:
        """The error of the simplest learning call, if it raises one."""
        try:
            self.original.copy().learn(self.segment(94))
        except Exception as error:
            return describe(error)
        return ""


@contextmanager
def cannot_audit(why: str) -> Iterator[None]:
    """Within this context, an error other than a user's mistake means that the target cannot be audited."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise CannotAuditError(f"{why}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """An error in one line: its type and text, the line of the policy, and the operation."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if len(text) < 400 else f"{text[:400]}…"
    where = error_location(error)
    notes: list[Any] = getattr(error, "__notes__", [])
    return " ".join([f"{type(error).__name__}: {text}", *([f"in {where}"] if where else []), *notes[:1]])
