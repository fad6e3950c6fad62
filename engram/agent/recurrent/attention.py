"""The attention core: each step attends to itself and to the past steps of its episode within a window.

Memory is the keys and values of the last steps, the oldest first, and their number.
"""

# T steps, B rows, I input size, H hidden size, W steps of the window, J = W + T keys, P size of a key and of a value,
# N heads, D = P / N

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.agent.recurrent.core import Core, clear
from engram.agent.recurrent.lru import gated_output

WINDOW = 64  # past steps
HEADS = 4
AGE_SCALE = 8  # a bias must grow to about 5 to single out one step: at 1, Adam needs thousands of updates for that


def attention_layer(
    x_TBI: Tensor, memory_BS: Tensor, starts_TB: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, age_NW: Tensor
) -> tuple[Tensor, Tensor]:
    """One layer: outputs [T, B, H] and the last memory. `age` is the bias of keys by their age in steps."""
    steps, rows, _ = x_TBI.shape
    size, window = w_hh.shape[1], age_NW.shape[1] - 1
    (memory_BS,) = clear(starts_TB[0], memory_BS)
    past_BWP, count_B = memory_BS[:, :-1].unflatten(1, (window, -1)), _count(memory_BS, window)
    query, new_TBP, skip = F.linear(x_TBI, w_ih, b_ih).split([size, 2 * size, len(w_hh)], dim=-1)
    both_BJP = torch.cat([past_BWP, new_TBP.transpose(0, 1)], dim=1)
    key, value = (_heads(each, len(age_NW)) for each in both_BJP.chunk(2, dim=-1))  # [B, N, J, D]
    scores = _heads(query.transpose(0, 1), len(age_NW)) @ key.transpose(-2, -1) * key.shape[-1] ** -0.5  # [B, N, T, J]
    number_J = torch.arange(window + steps, device=x_TBI.device)
    age_TJ = number_J[window:].unsqueeze(1) - number_J
    scores = scores + AGE_SCALE * age_NW[:, age_TJ.clamp(0, window)]
    visible = (age_TJ >= 0) & (age_TJ <= window) & _same_episode(starts_TB, count_B, window)
    weights = scores.masked_fill(~visible.unsqueeze(1), float("-inf")).softmax(dim=-1)
    read_TBP = (weights @ value).permute(2, 0, 1, 3).reshape(steps, rows, size)
    kept_BWP = both_BJP[:, steps:]
    if steps > 1:  # for a single step, `clear` has already emptied memory at an episode start
        since_B = _next_count(starts_TB, torch.full_like(count_B, window), window)  # without a start: the whole window
        kept_BWP = kept_BWP.masked_fill(~_filled(since_B, window).unsqueeze(2), 0)
    memory_BS = torch.cat([kept_BWP.flatten(1), _next_count(starts_TB, count_B, window).unsqueeze(1)], dim=1)
    return gated_output(F.linear(read_TBP, w_hh) + skip), memory_BS


class Attention(Core):
    gates = 1
    layer = staticmethod(attention_layer)

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, window: int = WINDOW) -> None:
        self.window, self.key_size = window, max(1, hidden_size // 2)
        super().__init__(input_size, hidden_size, num_layers)

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        rows = 3 * self.key_size + 2 * self.hidden_size  # query, key and value; value and gate of the output
        heads = HEADS if self.key_size % HEADS == 0 else 1
        return {
            "weight_ih": (rows, input_size),
            "weight_hh": (2 * self.hidden_size, self.key_size),
            "bias_ih": (rows,),
            "age": (heads, self.window + 1),
        }

    @property
    def memory_shape(self) -> tuple[int, int]:
        return self.num_layers, 2 * self.key_size * self.window + 1

    def reset_parameters(self) -> None:
        for name, parameter in self.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)


def _count(memory_BS: Tensor, window: int) -> Tensor:
    """The number of past steps in memory."""
    return memory_BS[:, -1].detach().clamp(0, window).floor()


def _heads(x_BJP: Tensor, heads: int) -> Tensor:
    return x_BJP.unflatten(-1, (heads, -1)).transpose(1, 2)


def _same_episode(starts_TB: Tensor, count_B: Tensor, window: int) -> Tensor:
    """Whether a key belongs to the episode of a step, [B, T, J]: the first W are those of memory."""
    episode_BT = starts_TB.t().cumsum(1)
    none = -1  # an empty slot; the steps in memory belong to episode 0, since a start at the first step empties it
    of_keys_BJ = torch.cat([torch.where(_filled(count_B, window), 0, none), episode_BT], dim=1)
    return episode_BT.unsqueeze(2) == of_keys_BJ.unsqueeze(1)


def _filled(count_B: Tensor, window: int) -> Tensor:
    """Which slots of memory [B, W] hold a step of the running episode: the last ones."""
    return torch.arange(window, 0, -1, device=count_B.device) <= count_B.unsqueeze(1)


def _next_count(starts_TB: Tensor, count_B: Tensor, window: int) -> Tensor:
    """The number of past steps of the running episode, at most W."""
    steps = len(starts_TB)
    number_T = torch.arange(1, steps + 1, device=starts_TB.device)
    last_start_B = (starts_TB * number_T.unsqueeze(1)).amax(0)  # 0: none
    since_B = torch.where(last_start_B > 0, (steps + 1 - last_start_B).to(count_B.dtype), count_B + steps)
    return since_B.clamp(max=window)
