"""Which nodes should be linked: pure functions and state machines without clock or IO."""
