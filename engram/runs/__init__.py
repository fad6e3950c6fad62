"""Many runs: groups, sweeps, their state, and comparisons."""
