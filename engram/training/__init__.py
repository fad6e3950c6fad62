"""Training: rollouts, experience, advantages, the loss, and the loop that joins them."""
