"""The topology manager: a service that registers nodes, monitors them and plans their links.

Agents do not depend on it: without it they keep their links and heal among the nodes they know.
"""
