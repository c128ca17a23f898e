"""The agent's MQTT clients at its own broker, and the broker or proxy that it runs itself."""
