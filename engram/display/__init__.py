"""The terminal display of a run while it trains, its summary, and the table of an evaluation."""
