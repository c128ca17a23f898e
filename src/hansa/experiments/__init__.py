"""Many simulations as one experiment: a grid of options, fanned out over Spark, kept in a lake."""
