"""The experiments of the papers as scenarios, and two small ones of our own for the documents."""
