"""A package, so that it takes precedence over `tests` that libraries install (gmqtt does)."""
