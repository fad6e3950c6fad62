"""Checks the shapes that `encode_observations` and `decode_actions` return, and names the one that is wrong."""

# B rows, T steps, N = B * T

from typing import Any

from torch import Tensor

from engram.agent.actions import describe_actions
from engram.env.spec import EnvSpec
from engram.settings import UserError


def check_features(policy: str, features: Any, rows: int, input_size: int) -> None:
    """Of `encode_observations`: `input_size` numbers for each of N rows."""
    if not isinstance(features, Tensor) or features.shape[:1] != (rows,) or features.shape[1:].numel() != input_size:
        raise UserError(
            f"{policy}: encode_observations returned {_describe(features)}, but the core expects "
            f"[{rows}, {input_size}] (input_size={input_size}): make the two agree"
        )


def check_pair(policy: str, decoded: Any) -> tuple[Tensor, Tensor]:
    """Of `decode_actions`: two tensors."""
    if isinstance(decoded, tuple | list) and len(decoded) == 2 and all(isinstance(each, Tensor) for each in decoded):
        return decoded[0], decoded[1]
    raise UserError(f"{policy}: decode_actions returned {_describe(decoded)}, expected two tensors, logits and values")


def check_outputs(policy: str, spec: EnvSpec, width: int, logits: Tensor, value: Tensor, rows: int, steps: int) -> None:
    """Of `decode_actions`, for B rows and T steps: logits [N, width], and values [N] or [N, 1]."""
    count = rows * steps
    if logits.shape != (count, width):
        raise UserError(
            f"{policy}: decode_actions returned logits {_describe(logits)}, but {describe_actions(spec)} need "
            f"[{count}, {width}]: return self.action_space.logits of them per row"
        )
    shape = value.shape[:-1] if value.dim() > 1 and value.shape[-1] == 1 else value.shape
    if shape != (count,) and shape != (rows, steps):
        raise UserError(
            f"{policy}: decode_actions returned values {_describe(value)}, expected one for each row of logits: "
            f"[{count}] or [{count}, 1]"
        )


def _describe(given: Any) -> str:
    return str(list(given.shape)) if isinstance(given, Tensor) else f"a {type(given).__name__}"
