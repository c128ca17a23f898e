"""Sets up one site for `hansa init`: its Mosquitto, the files of the agent, the service."""
