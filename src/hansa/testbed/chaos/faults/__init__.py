"""The kinds of faults: each is a function that injects faults at random until it is cancelled."""
