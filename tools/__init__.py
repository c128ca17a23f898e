"""Tools of `./run`; not installed with the package."""
