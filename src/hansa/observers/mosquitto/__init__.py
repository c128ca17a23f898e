"""The observer for Mosquitto: its log, its sessions, its subscription tree."""
