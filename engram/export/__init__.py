"""Exports trained policies as ONNX or PyTorch programs that run without Engram."""

from engram.export.program import PolicyStep as PolicyStep
