"""Break a live federation on purpose, and find out whether it kept its promise."""
