"""Exports trained policies as ONNX or PyTorch programs that run without Engram."""

from engram.export.step import PolicyStep as PolicyStep
