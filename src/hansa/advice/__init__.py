"""What a recorded federation would better change, each with its effect: reckoned, then replayed."""
