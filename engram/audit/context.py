"""Audit: what every check is given: the policy to play, fresh copies of it, and random numbers that repeat."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from engram.audit.adapters import adapt
from engram.audit.keeping import copy_of
from engram.audit.places import raised_at
from engram.audit.playing import Lived, Story, live, random_actions, write_story
from engram.audit.result import CannotAuditError, DoesNotApplyError
from engram.audit.subject import Segment, Subject
from engram.audit.td import TdSubject
from engram.env.spec import EnvSpec
from engram.settings import UserError

EXACT = 1e-5  # how far apart float32 numbers of size 1 may be that should be equal
VISIBLE = 1e-3  # what memory should change an output by, for a fault in it to be seen clearly


class Audit:
    rows, steps = 6, 8

    def __init__(
        self,
        make: Callable[..., nn.Module],
        spec: EnvSpec,
        seed: int = 0,
        adapter: str = "auto",
        takes_options: bool = False,
    ) -> None:
        """`make()` gives the policy; with `takes_options`, keyword arguments are its settings."""
        self.make, self.spec, self.seed, self.takes_options = make, spec, seed, takes_options
        self.as_made = self._built(adapter)
        self.learning_fault = self._try_learning()
        self.mode_matters = self._mode_matters()
        self._check_reset(self.as_made)
        self.lively, self.memory_effect = self._made_visible()

    @property
    def policy(self) -> nn.Module:
        return self.as_made.policy

    def subject(self, as_made: bool = False, own_mode: bool = False) -> Subject:
        """A copy that has seen nothing; with the weights it came with, or with others where those show too little.

        Where training mode changes what is said (dropout, say), which is one check's business, the others are told
        nothing by it: they get the policy in evaluation mode, unless they ask for its own.
        """
        subject = copied(self.as_made if as_made else self.lively)
        if self.mode_matters and not own_mode:
            subject.training_mode = False
        return subject

    def adapted(self, policy: nn.Module) -> Subject:
        """Another policy of the same kind, to be played in the same way."""
        subject = adapt(policy, self.spec, self.as_made.kind)
        if isinstance(subject, TdSubject) and isinstance(self.as_made, TdSubject):
            subject.trusts_reset = self.as_made.trusts_reset
        return subject

    def generator(self, salt: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * 1000 + salt)

    def story(self, salt: int = 0, rows: int | None = None, steps: int | None = None, end_chance: float = 0.0) -> Story:
        return write_story(self.spec, rows or self.rows, steps or self.steps, self.generator(salt), end_chance)

    def segment(
        self, salt: int = 0, rows: int | None = None, steps: int | None = None, end_chance: float = 0
    ) -> Segment:
        story = self.story(salt, rows, steps, end_chance)
        return story.segment(random_actions(self.spec, (story.rows, story.steps), self.generator(salt + 1)))

    def needs_memory(self) -> None:
        """For checks that say nothing of a policy whose answers do not depend on the past."""
        if self.memory_effect <= EXACT:
            raise DoesNotApplyError(
                "nothing that was seen before changes an answer, so there is nothing to test: see memory_used"
            )

    def _built(self, adapter: str) -> Subject:
        torch.manual_seed(self.seed)
        try:
            policy = self.make()
        except UserError:
            raise
        except Exception as error:
            raise CannotAuditError(f"the policy cannot be built: {describe(error)}") from error
        moment = self.story(99, steps=1).moment(slice(0, self.rows), 0)
        subject = self._adapted(policy, adapter)
        subject.policy.train()
        try:
            with torch.no_grad():
                if any(isinstance(p, UninitializedParameter) for p in subject.policy.parameters()):
                    subject.act(moment)  # lazy layers get their weights
                    subject = self._adapted(policy, adapter)
                copied(subject).act(moment)
        except Exception as error:
            raise CannotAuditError(
                f"{type(subject.policy).__name__} cannot be called to act on {self.spec.name} (played as "
                f"'{subject.kind}'): "
                f"{describe(error)}"
            ) from error
        return subject

    def _adapted(self, policy: nn.Module, adapter: str) -> Subject:
        try:
            return adapt(policy, self.spec, adapter)
        except UserError:
            raise
        except Exception as error:
            raise CannotAuditError(
                f"it is not known how to play a {type(policy).__name__}: {describe(error)}"
            ) from error

    @torch.no_grad()
    def _mode_matters(self) -> bool:
        """Whether training and evaluation mode give different numbers."""
        story, said = self.story(93, steps=2), []
        try:
            for mode in (True, False):
                copy = copied(self.as_made)
                copy.training_mode = mode
                torch.manual_seed(self.seed)
                said.append(live(copy, story).numbers)
                if not self.learning_fault:
                    said[-1] = torch.cat([said[-1].flatten(), copy.learn(self.segment(92)).numbers().flatten()])
        except Exception:  # the checks run into it too, and tell
            return False
        return worst(said[0], said[1]) > tolerance(said[0])

    def _check_reset(self, subject: Subject) -> None:
        """A reset that does not work is one check's business; the others then clear memory in another way."""
        if isinstance(subject, TdSubject) and subject.trusts_reset:
            copy, story = copied(subject), self.story(98, steps=3)
            copy.training_mode = False if self.mode_matters else None
            try:
                with torch.no_grad():
                    first = live(copy, story)
                    copy.forget()
                    again = live(copy, story)
            except Exception:
                subject.trusts_reset = False
                return
            subject.trusts_reset = worst(first.numbers, again.numbers) <= tolerance(first.numbers)

    def _made_visible(self) -> tuple[Subject, float]:
        """Memory is right or wrong whatever the weights are. Heads that begin near zero would hide it."""
        effect = self._effect(self.as_made)
        if effect >= VISIBLE:
            return self.as_made, effect
        shaken = copied(self.as_made)
        shake(shaken.policy, self.generator(97))
        if isinstance(shaken, TdSubject):
            shake(shaken._blank, self.generator(97))
        shaken_effect = self._effect(shaken)
        return (shaken, shaken_effect) if shaken_effect > effect else (self.as_made, effect)

    @torch.no_grad()
    def _effect(self, subject: Subject) -> float:
        """How much two different pasts change what is said of the same present."""
        story = self.story(96, steps=3)
        other = story.with_other_past(slice(None), 2, self.generator(95), self.spec)
        said: list[Lived] = []
        try:
            for each in (story, other):
                copy = copied(subject)
                copy.training_mode = False if self.mode_matters else None
                torch.manual_seed(self.seed)
                said.append(live(copy, each))
        except Exception:  # the checks run into it too, and tell
            return torch.inf
        return worst(said[0].numbers[:, -1], said[1].numbers[:, -1])

    def _try_learning(self) -> str:
        """What is wrong with the plainest learning call, if anything."""
        try:
            copied(self.as_made).learn(self.segment(94))
        except Exception as error:
            return describe(error)
        return ""


def copied(subject: Subject) -> Subject:
    return copy_of(subject, subject.policy)


def gap(one: Tensor, other: Tensor) -> Tensor:
    """Absolute differences; infinite where only one is infinite, or either is not a number."""
    return torch.where(one == other, 0.0, (one - other).abs().nan_to_num(nan=torch.inf))


def worst(one: Tensor, other: Tensor) -> float:
    return float(gap(one, other).max()) if one.numel() else 0.0


def tolerance(*numbers: Tensor, exact: float = EXACT) -> float:
    """How far apart numbers of this size may be that should be equal."""
    finite = [part[part.isfinite()].abs() for part in numbers]
    return exact * max(1.0, *(float(part.max()) if part.numel() else 0.0 for part in finite))


@torch.no_grad()
def shake(policy: nn.Module, generator: torch.Generator) -> None:
    """Give every weight some size."""
    for parameter in policy.parameters():
        inputs = parameter[0].numel() if parameter.dim() > 1 else 25
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.add_((0.5 / max(inputs, 1) ** 0.5) * noise.to(parameter))


def describe(error: BaseException) -> str:
    """An error in one line: what, in which line of the policy, and while doing what."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if len(text) < 400 else f"{text[:400]}…"
    where = raised_at(error)
    notes: list[Any] = getattr(error, "__notes__", [])
    return " ".join([f"{type(error).__name__}: {text}", *([f"in {where}"] if where else []), *notes[:1]])
