"""Policy: what every recurrent policy has, however it is built: fields of the td, memory by name, and weight tools."""

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

from engram.agent.actions import make_actions
from engram.agent.normalization import ObservationNormalizer, ValueNormalizer
from engram.agent.policies.shape_checks import check_outputs
from engram.agent.recurrent.core import Core
from engram.agent.recurrent.store import MemoryStore
from engram.agent.weights import L2Init, WeightLayer, WeightOptions, clip_weights, weight_layers, weight_metrics
from engram.env.spec import EnvSpec
from engram.nearest import suggestion
from engram.tracing import is_traced


class Policy(nn.Module):
    """The base of `LSTMWrapper` and `ComponentPolicy`. Their forward computes logits and values; this does the rest."""

    def __init__(self, env: object, clip_range: float = 0, analyze_weights_interval: int = 300) -> None:
        super().__init__()
        self.env_spec = EnvSpec.of(env)
        self.action_space = make_actions(self.env_spec)
        self.clip_range = clip_range
        self.analyze_weights_interval = analyze_weights_interval
        self.segment_shape = (0, 0)  # of the call at hand, where a forward of its own says so
        self.unused_arguments: dict[str, Any] = {}  # accepted and kept, but nothing reads them
        self.weight_options: dict[str, WeightOptions] = {}  # of submodules, by name
        self.l2_init = L2Init()
        self.value_normalizer = ValueNormalizer()

    def stores(self) -> Mapping[str, MemoryStore]:
        """Everything that remembers, by name."""
        raise NotImplementedError

    def get_memory(self) -> Any:
        """A copy of all memory, by environment id."""
        raise NotImplementedError

    def set_memory(self, memory: Any) -> None:
        """Replace all memory by what `get_memory` gave."""
        raise NotImplementedError

    # Memory as a value, for whoever carries it: rollouts, checkpoints, evaluation.

    def memory_shapes(self) -> dict[str, tuple[int, int]]:
        """Layers and floats per layer of one row's memory, by name."""
        return {name: (store.memory_NLS.shape[1], store.memory_NLS.shape[2]) for name, store in self.stores().items()}

    def memory_of(self, ids_B: Tensor) -> dict[str, Tensor]:
        """Copies of these rows' memory, [B, L, S] by name: what a td's `memory` field takes."""
        return {name: store.read(ids_B) for name, store in self.stores().items()}

    def reserve_memory(self, rows: int) -> None:
        """Make room for ids below `rows` at once, so that no call has to look."""
        for store in self.stores().values():
            store.reserve(rows)

    def reset_memory(self) -> None:
        """Forget everything."""
        for store in self.stores().values():
            store.clear()

    def reset_env_memory(self, env_id: int) -> None:
        """Forget one environment row; no error if it is not known."""
        for store in self.stores().values():
            store.clear(env_id)

    def has_memory(self) -> bool:
        return bool(self.stores())

    # Weights.

    def clip_weights(self) -> None:
        """After every optimiser step: weights and biases, the recurrent ones too, back into the clip range."""
        if self.clip_range > 0:
            clip_weights(self.weight_layers(), self.clip_range)

    def l2_init_loss(self) -> Tensor:
        """How far the weights are from where they began."""
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
        """The critic's last layer, if it is linear: rescaled when the value normaliser changes, so values do not."""
        return None

    def observation_normalizers(self) -> list[ObservationNormalizer]:
        return [module for module in self.modules() if isinstance(module, ObservationNormalizer)]

    # The td, as the table of the policy call says.

    def get_agent_experience_spec(self) -> TensorDict:
        """What a policy wants to find again when it learns: one row's worth of each field."""
        space = self.env_spec.single_observation_space
        dtype = torch.from_numpy(space.low.ravel()[:1].astype(space.dtype)).dtype
        return TensorDict({"env_obs": torch.zeros(space.shape, dtype=dtype)}, batch_size=[])

    def forward_inference(self, td: TensorDictBase, logits: Tensor, value: Tensor) -> TensorDictBase:
        """Fill in an acting td: what to do, how likely it was, and the value."""
        rows = math.prod(td.batch_size)
        self._check(logits, value, rows, 1)
        self.set_shape_fields(td, rows, 1)
        noise = td.get("action_noise", None)
        if noise is None:
            noise = torch.rand(logits.shape[0], self.action_space.noise, device=logits.device)
        sample = self.action_space.sample(logits, noise)
        td["actions"] = sample.actions
        td["act_log_prob"] = sample.log_prob
        td["values"] = self.value_normalizer(value.reshape(-1).to(sample.log_prob.dtype))
        td["full_log_probs"] = sample.full_log_probs
        return td

    def forward_training(self, td: TensorDictBase, action: Tensor, logits: Tensor, value: Tensor) -> TensorDictBase:
        """Fill in a learning td, [B, T] or flattened, for the actions that were taken. Returned as [B, T]."""
        rows, steps = self._learning_shape(td, action)
        self._check(logits, value, rows, steps)
        evaluation = self.action_space.evaluate(logits, action)
        if td.batch_dims != 2:
            td = td.reshape(rows, steps)
        self.set_shape_fields(td, rows, steps)
        td["act_log_prob"] = evaluation.log_prob.view(rows, steps)
        td["entropy"] = evaluation.entropy.view(rows, steps)
        td["value"] = self.value_normalizer(value.reshape(rows, steps).to(evaluation.log_prob.dtype))
        td["full_log_probs"] = evaluation.full_log_probs.view(rows, steps, -1)
        return td

    def set_shape_fields(self, td: TensorDictBase, rows: int, steps: int) -> None:
        """`bptt` and `batch`, for code that reads them; ours uses shapes."""
        observations = td["env_obs"]
        compiling = is_traced() or type(observations) is not Tensor  # but a compiler's stand-in
        make = torch.full if compiling else _filled
        td["bptt"] = make(td.batch_size, steps, device=observations.device)
        td["batch"] = make(td.batch_size, rows, device=observations.device)

    def _check(self, logits: Tensor, value: Tensor, rows: int, steps: int) -> None:
        check_outputs(type(self).__name__, self.env_spec, self.action_space.logits, logits, value, rows, steps)

    def _learning_shape(self, td: TensorDictBase, action: Tensor) -> tuple[int, int]:
        if td.batch_dims == 2:
            return td.batch_size[0], td.batch_size[1]
        per_action = len(self.env_spec.single_action_space.shape)
        if action.dim() == per_action + 2:
            return action.shape[0], action.shape[1]
        if math.prod(self.segment_shape) == math.prod(td.batch_size):
            return self.segment_shape
        raise ValueError(
            f"a learning call got a td of batch size {list(td.batch_size)} and actions {list(action.shape)}: "
            "one of the two must still be [B, T], or the shape of the segment is lost"
        )


@lru_cache(maxsize=64)
def _filled(shape: torch.Size, number: int, device: torch.device) -> Tensor:
    """As `torch.full`, made once for all calls: a view of one number, which nobody can write to."""
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
    """One warning for each option that nothing uses, with the nearest one that something does."""
    known = {
        name
        for base in policy.__mro__
        if issubclass(base, nn.Module)
        for name, parameter in inspect.signature(base.__init__).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and name not in ("self", "env", "args")
    }
    for name in arguments:
        hint = suggestion(name, known)
        if name in known:  # by a base class, to which it is not handed on
            hint = "; let __init__ take **kwargs and give them to super().__init__"
        warnings.warn(f"{policy.__name__}: nothing uses the option {name}{hint}", stacklevel=4)
