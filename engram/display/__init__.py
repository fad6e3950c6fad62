"""What people look at: a run in the terminal while it trains, and what came of it."""
