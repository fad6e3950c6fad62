"""Soak: trains while injecting faults, and checks that runs resume unharmed."""
