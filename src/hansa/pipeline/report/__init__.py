"""The report of a lake: one HTML file with figures, plots and tables, without scripts."""
