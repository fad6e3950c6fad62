"""C kernels for CPUs: drop-ins for PyTorch definitions elsewhere in the package, faster and never required.

`build.py` compiles them, `library.py` loads and calls them, `operator.py` makes custom operators of them. Each other
module wraps one kernel, and `*.c` and `*.h` are the sources.
"""
