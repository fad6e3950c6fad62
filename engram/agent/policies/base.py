"""Policy: the base of all recurrent policies. It fills in the td, gives access to memory, and has weight tools."""

# B rows, T steps, N = B * T, L layers, S floats per layer, H hidden size

import inspect
import math
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from engram.agent.actions import at_least_float32, describe_actions, make_actions
from engram.agent.normalization import ObservationNormalizer, ValueNormalizer
from engram.agent.observations import example, first_tensor
from engram.agent.previous_step import PreviousStep
from engram.agent.recurrent.core import Core
from engram.agent.recurrent.store import MemoryStore
from engram.agent.weights import L2Init, WeightLayer, WeightOptions, clip_weights, weight_layers, weight_metrics
from engram.env.parts import ACTION_MASK
from engram.env.spec import EnvSpec
from engram.native.operator import is_traced
from engram.nearest import suggestion
from engram.settings import UserError

IMPOSSIBLE = -1e9  # finite, so that a row whose mask allows nothing (an absent agent) has no NaN


class Policy(nn.Module):
    """The base of `LSTMWrapper` and `ComponentPolicy`. Their forward computes logits and values; this does the rest."""

    def __init__(self, env: object, clip_range: float = 0, analyze_weights_interval: int = 300) -> None:
        super().__init__()
        self.env_spec = EnvSpec.of(env)
        self.action_space = make_actions(self.env_spec)
        self.clip_range = clip_range
        self.analyze_weights_interval = analyze_weights_interval
        self.segment_shape = (0, 0)  # (B, T) of the current call, set by policies that override forward
        self.unused_arguments: dict[str, Any] = {}  # accepted but not used
        self.weight_options: dict[str, WeightOptions] = {}  # of submodules, by name
        self.previous: PreviousStep | None = None  # inputs beside the observation, if any
        self.l2_init = L2Init()
        self.value_normalizer = ValueNormalizer()

    def stores(self) -> Mapping[str, MemoryStore]:
        """The memory stores, by name."""
        raise NotImplementedError

    def get_memory(self) -> Any:
        """A copy of all memory, by environment id."""
        raise NotImplementedError

    def set_memory(self, memory: Any) -> None:
        """Replace all memory by a result of `get_memory`."""
        raise NotImplementedError

    # Memory as a value, for rollouts, checkpoints and evaluation.

    def memory_shapes(self) -> dict[str, tuple[int, int]]:
        """Layers and floats per layer of one row's memory, by name."""
        return {name: (store.memory_NLS.shape[1], store.memory_NLS.shape[2]) for name, store in self.stores().items()}

    def memory_of(self, ids_B: Tensor) -> dict[str, Tensor]:
        """Copies of these rows' memory, [B, L, S] by name: what a td's `memory` field takes."""
        return {name: store.read(ids_B) for name, store in self.stores().items()}

    def reserve_memory(self, rows: int) -> None:
        """Allocate memory for ids below `rows`, so that no call has to grow it."""
        for store in self.stores().values():
            store.reserve(rows)

    def reset_memory(self) -> None:
        """Clear all memory."""
        for store in self.stores().values():
            store.clear()

    def reset_env_memory(self, env_id: int) -> None:
        """Clear the memory of one environment row. Unknown rows are ignored."""
        for store in self.stores().values():
            store.clear(env_id)

    def has_memory(self) -> bool:
        return bool(self.stores())

    # Weights.

    def clip_weights(self) -> None:
        """Clamp weights and biases to the clip range, including recurrent ones. Called after every optimiser step."""
        if self.clip_range > 0:
            clip_weights(self.weight_layers(), self.clip_range)

    def l2_init_loss(self) -> Tensor:
        """Squared distance of the weights from their initial values."""
        return self.l2_init.loss(self.weight_layers())

    def update_l2_init_weight_copy(self) -> None:
        self.l2_init.update_copy(self.weight_layers())

    def compute_weight_metrics(self) -> dict[str, float]:
        return weight_metrics(self.weight_layers())

    def weight_layers(self) -> list[WeightLayer]:
        return weight_layers(self, self.weight_options)

    def recurrent_parameters(self) -> list[nn.Parameter]:
        return [p for module in self.modules() if isinstance(module, Core) for p in module.parameters()]

    # Normalisation.

    def value_layer(self) -> nn.Linear | None:
        """The critic's last layer if it is linear, for `value_output`."""
        return None

    def value_output(self) -> nn.Linear | None:
        """The linear layer that gives values: `value_layer`, or an asymmetric critic's.

        It is rescaled when the value normaliser changes, so that values stay the same (PopArt).
        """
        return self.value_layer()

    def observation_normalizers(self) -> list[ObservationNormalizer]:
        return [module for module in self.modules() if isinstance(module, ObservationNormalizer)]

    # Fields of the td.

    def get_agent_experience_spec(self) -> TensorDict:
        """The fields that learning needs from a rollout: one row of each."""
        previous = {} if self.previous is None else self.previous.fields()
        return TensorDict({"env_obs": example(self.env_spec), **previous}, batch_size=[])

    def forward_inference(self, td: TensorDictBase, logits: Tensor, value: Tensor) -> TensorDictBase:
        """Fill in an acting td [B]: actions, their log-probabilities, and values."""
        rows = math.prod(td.batch_size)
        self._check(logits, value, rows, 1)
        self.set_shape_fields(td, rows, 1)
        noise = td.get("action_noise", None)
        if noise is None:
            noise = torch.rand(logits.shape[0], self.action_space.noise, device=logits.device)
        sample = self.action_space.sample(masked(logits, td), noise)
        td["actions"] = sample.actions
        td["act_log_prob"] = sample.log_prob
        td["values"] = self.value_normalizer(value.reshape(-1).to(sample.log_prob.dtype))
        td["full_log_probs"] = sample.full_log_probs
        return td

    def forward_training(self, td: TensorDictBase, action: Tensor, logits: Tensor, value: Tensor) -> TensorDictBase:
        """Fill in a learning td, [B, T] or flattened, for the given actions. Returns it as [B, T]."""
        rows, steps = self._learning_shape(td, action)
        self._check(logits, value, rows, steps)
        evaluation = self.action_space.evaluate(masked(logits, td), action)
        if td.batch_dims != 2:
            td = td.reshape(rows, steps)
        self.set_shape_fields(td, rows, steps)
        td["act_log_prob"] = evaluation.log_prob.view(rows, steps)
        td["entropy"] = evaluation.entropy.view(rows, steps)
        td["value"] = self.value_normalizer(value.reshape(rows, steps).to(evaluation.log_prob.dtype))
        td["full_log_probs"] = evaluation.full_log_probs.view(rows, steps, -1)
        return td

    def set_shape_fields(self, td: TensorDictBase, rows: int, steps: int) -> None:
        """Set `bptt` and `batch`, which user code may read. Engram itself uses shapes."""
        observations = first_tensor(td["env_obs"])
        compiling = is_traced() or type(observations) is not Tensor  # a fake tensor
        make = torch.full if compiling else _filled
        td["bptt"] = make(td.batch_size, steps, device=observations.device)
        td["batch"] = make(td.batch_size, rows, device=observations.device)

    def _check(self, logits: Tensor, value: Tensor, rows: int, steps: int) -> None:
        check_outputs(type(self).__name__, self.env_spec, self.action_space.logits, logits, value, rows, steps)

    def _learning_shape(self, td: TensorDictBase, action: Tensor) -> tuple[int, int]:
        if td.batch_dims == 2:
            return td.batch_size[0], td.batch_size[1]
        dims_of_one_action = len(self.env_spec.single_action_space.shape)
        if action.dim() == dims_of_one_action + 2:
            return action.shape[0], action.shape[1]
        if math.prod(self.segment_shape) == math.prod(td.batch_size):
            return self.segment_shape
        raise ValueError(
            f"a learning call got a td of batch size {list(td.batch_size)} and actions {list(action.shape)}: "
            "one of the two must still be [B, T], so that B and T are known"
        )


def masked(logits: Tensor, td: TensorDictBase) -> Tensor:
    """Logits [N, W], those of impossible actions so low that their probability is exactly 0."""
    mask = td.get(ACTION_MASK, None)
    if mask is None:
        return logits
    return at_least_float32(logits).masked_fill(~mask.reshape(logits.shape), IMPOSSIBLE)


@lru_cache(maxsize=64)
def _filled(shape: torch.Size, number: int, device: torch.device) -> Tensor:
    """`torch.full` as a read-only view of one number, cached."""
    return torch.tensor(number, device=device).expand(shape)


def call_shape(td: TensorDictBase, action: Tensor | None) -> tuple[int, int]:
    """Rows and steps of a call: acting is [B], learning [B, T]."""
    if action is None and td.batch_dims == 1:
        return td.batch_size[0], 1
    if action is not None and td.batch_dims == 2:
        return td.batch_size[0], td.batch_size[1]
    if action is None:
        raise ValueError(
            f"acting takes a td of batch size [B], got {list(td.batch_size)}; to replay a segment, give the actions too"
        )
    raise ValueError(f"learning takes a td of batch size [B, T], got {list(td.batch_size)}")


def warn_of_unused(policy: type[Policy], arguments: Mapping[str, Any]) -> None:
    """Warn once for each unused option, and suggest the nearest known one."""
    known = {
        name
        for base in policy.__mro__
        if issubclass(base, nn.Module)
        for name, parameter in inspect.signature(base.__init__).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and name not in ("self", "env", "args")
    }
    for name in arguments:
        hint = suggestion(name, known)
        if name in known:  # a base class has this option, but __init__ does not pass it on
            hint = "; let __init__ take **kwargs and give them to super().__init__"
        warnings.warn(f"{policy.__name__}: nothing uses the option {name}{hint}", stacklevel=4)


def check_features(policy: str, encoded: Any, rows: int, input_size: int) -> tuple[Tensor, Tensor | None]:
    """Checks the result of `encode_observations`: features [N, input_size], and the logits beside them, if any."""
    features, shortcut = encoded if isinstance(encoded, tuple) and len(encoded) == 2 else (encoded, None)
    if not isinstance(features, Tensor) or features.shape[:1] != (rows,) or features.shape[1:].numel() != input_size:
        raise UserError(
            f"{policy}: encode_observations returned {_describe(features)}, but the core expects "
            f"[{rows}, {input_size}] (input_size={input_size}): make the two agree"
        )
    return features, shortcut


def check_shortcut(policy: str, shortcut: Any, logits: Tensor) -> None:
    """Checks the logits of `encode_observations`, which are added to those of `decode_actions`."""
    if not isinstance(shortcut, Tensor) or shortcut.shape != logits.shape:
        raise UserError(
            f"{policy}: encode_observations returned a pair of features and {_describe(shortcut)}, but the second is "
            f"added to the logits {_describe(logits)} of decode_actions: make it logits too, or return only features"
        )


def check_pair(policy: str, decoded: Any) -> tuple[Tensor, Tensor]:
    """Checks that `decode_actions` returned two tensors."""
    if isinstance(decoded, tuple | list) and len(decoded) == 2 and all(isinstance(each, Tensor) for each in decoded):
        return decoded[0], decoded[1]
    raise UserError(f"{policy}: decode_actions returned {_describe(decoded)}, expected two tensors, logits and values")


def check_outputs(policy: str, spec: EnvSpec, width: int, logits: Tensor, value: Tensor, rows: int, steps: int) -> None:
    """Checks the shapes of a policy's outputs for B rows and T steps: logits [N, width], values [N] or [N, 1]."""
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
