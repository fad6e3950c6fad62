"""The autograd graph behind tensors."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def graph_nodes(tensors: Iterable[Tensor]) -> set[Any]:
    """Every operation that a backward pass from these tensors would run through, but for the weights at its ends."""
    ahead = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    nodes: set[Any] = set()
    while ahead:
        node = ahead.pop()
        if node not in nodes and node.name() != "torch::autograd::AccumulateGrad":
            nodes.add(node)
            ahead.extend(following for following, _ in node.next_functions if following is not None)
    return nodes
