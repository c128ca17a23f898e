"""What people type. One file per command: it parses, calls one function below, and prints."""
