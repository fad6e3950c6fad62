"""The recurrent cores by name."""

from engram.agent.core import Core
from engram.agent.gru import GRU
from engram.agent.lstm import LSTM
from engram.agent.mingru import MinGRU

CORES: dict[str, type[Core]] = {"lstm": LSTM, "gru": GRU, "mingru": MinGRU}
