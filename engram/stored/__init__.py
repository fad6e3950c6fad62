"""Files that a stranger may have written: read within bounds, and code that they name runs only if it is trusted."""
