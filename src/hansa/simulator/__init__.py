"""The deterministic shell: the same nodes as in the live agent, on virtual time and a seeded world.

`run.simulate(options)` plays one run and returns a `Result`; a seed and the options are the whole
run, bit for bit. A *place* is a number of the topology: one broker and the agent beside it. The
agent's node has a NodeId, which changes when the agent loses its state; its place never does.
"""
