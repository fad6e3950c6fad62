"""The recurrent cores by name."""

from engram.agent.recurrent.core import Core
from engram.agent.recurrent.gru import GRU
from engram.agent.recurrent.lstm import LSTM
from engram.agent.recurrent.mingru import MinGRU

CORES: dict[str, type[Core]] = {"lstm": LSTM, "gru": GRU, "mingru": MinGRU}
