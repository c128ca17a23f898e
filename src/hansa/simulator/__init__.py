"""The deterministic shell: the nodes of the live agent, in virtual time and a seeded world.

`run.simulate(options)` runs a simulation and returns a `SimulationResult`; options and seed
determine it bit for bit. A *place* is the index of a site in the topology: one broker and its
agent. A node's NodeId changes when the agent loses its state; its place never does.
"""
