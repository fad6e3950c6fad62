"""The JSON part of a checkpoint, checked before anything is built from it."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from engram.env.spec import EnvSpec
from engram.stored.files import has_control_characters

Count = Annotated[int, Field(ge=0, lt=2**62)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class ProgressState(_Part):
    steps: Count
    epoch: Count
    seconds: Seconds


class ExplosionState(_Part):
    norms: list[float]
    above: Count


class RankStateJson(_Part):
    has_env_state: bool
    env_dtypes: dict[str, str] = {}


class ScoreState(_Part):
    evaluated: bool
    value: float


class EnvState(_Part):
    settings: dict[str, Any]
    seed: Annotated[int, Field(ge=0, lt=2**63)]


class CheckpointState(_Part):
    """What `state.json` must hold. Checkpoints of earlier versions have no `ranks`."""

    progress: ProgressState
    recent_returns: list[Finite]
    schedules: dict[str, dict[str, Any]]
    explosion: ExplosionState
    env: EnvState | None = None
    env_spec: dict[str, Any]
    policy_spec: dict[str, Any]
    sizes: dict[str, Count] = {}
    ranks: Annotated[list[RankStateJson], Field(min_length=1)] | None = None
    score: ScoreState | None = None

    @field_validator("env_spec", "policy_spec")
    @classmethod
    def _is_a_spec(cls, spec: dict[str, Any]) -> dict[str, Any]:
        try:
            EnvSpec.from_json(spec)
        except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"not an environment's spec: {type(error).__name__} {error}") from error
        return spec


def problem_of(state: Any) -> str | None:
    """What is wrong with the state of a checkpoint, if anything."""
    if has_control_characters(state):
        return "a name in it holds control characters"
    try:
        CheckpointState.model_validate(state)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except ValueError as error:  # unpaired surrogates
        return str(error)
    return None
