"""A lake as one page: numbers, plots, tables; no script, nothing loaded from elsewhere."""
