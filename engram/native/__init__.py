"""C kernels for CPUs: drop-ins for PyTorch definitions elsewhere in the package, faster and never required.

`build.py` compiles them, `library.py` finds and loads them, `call.py` validates tensors and calls them. Each other
module wraps one kernel, and `*.c` and `*.h` are the sources.
"""
