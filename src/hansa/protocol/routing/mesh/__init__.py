"""The mesh strategy (Spohn 2020), by its parts."""
