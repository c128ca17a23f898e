"""An observer for brokers with an HTTP API: it polls the list of all subscriptions.

description.py   what to request from a broker, and where the answer has client and filter
answer.py        reads an answer as the description says, or refuses it
observer.py      the filters of the last good poll, and whether they are all

All three are pure; the requests are in `hansa.agent.broker.rest_poller`.
"""
