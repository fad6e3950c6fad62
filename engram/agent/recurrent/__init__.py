"""Recurrent cores with exact episode boundaries, by name, and the memory store."""

from engram.agent.recurrent.attention import WINDOW, Attention
from engram.agent.recurrent.core import Core
from engram.agent.recurrent.gru import GRU, MinGRU
from engram.agent.recurrent.lru import LRU
from engram.agent.recurrent.lstm import LSTM
from engram.settings import UserError

CORES: dict[str, type[Core]] = {"lstm": LSTM, "gru": GRU, "mingru": MinGRU, "lru": LRU, "attention": Attention}


def make_core(name: str, input_size: int, hidden_size: int, num_layers: int, window: int | None = None) -> Core:
    """A core by name; `window` is for attention alone."""
    if name == "attention":
        return Attention(input_size, hidden_size, num_layers, window or WINDOW)
    if window is not None:
        raise UserError(f"py_agent.window: the core {name} has no window: only with py_agent.core=attention")
    return CORES[name](input_size, hidden_size, num_layers)
