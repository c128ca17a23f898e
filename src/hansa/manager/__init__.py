"""The topology manager: a service that lets nodes join, watches them and plans their links.

Nothing depends on it: when it is away, agents run on and heal among those they know.
"""
