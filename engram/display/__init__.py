"""What people look at: a run while it trains, its summary, and pages about runs."""
