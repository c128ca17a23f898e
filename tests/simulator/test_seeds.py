"""Seeds that once found an error, each with one sentence."""

import pytest

from hansa.simulator.run import simulate
from hansa.simulator.scenarios.sampling import random_options

SEEDS = {
    0: "a deadline that rounding kept one step away from its own test made the timer spin",
    3: "a dropped route forgot its feasible distance, and parents formed a loop",
    9: "a retired core took its own announcement, back around a loop, for another's",
    15: "the first record of a new incarnation cleared the claims of the same incarnation",
    27: "a changed capacity did not start a new election of the management core",
    70: "a repair requested by the previous incarnation skipped what it had not synced",
    82: "frames released together were merged before the first was forwarded",
    127: "a clone and the restarted original shared an incarnation, and the id stayed contested",
    296: "the checker of parents took a link to an ended process for one to its successor",
    551: "two parts refused each other's hello and closed before either read the other's Goodbye;"
    " a relay was refused membership of more groups than one node may be interested in",
    580: "a node that raised its incarnation did not acknowledge interest again, and the nodes that"
    " waited for it asked at ever longer intervals",
    734: "QoS 0 publications were assigned to unreachable consumers of a share",
    1202: "an id conflict between unconnected components was considered resolved",
    1788: "datagram links ended without notice, and a link to a stopped clone was taken for the"
    " original's",
    1891: "a share without consumers remained and was selected",
    4459: "the run ended before an agent with one publication in flight had delivered its inbox",
    5324: "consumers of a share were served twice, for a plain filter whose last client had left",
    5865: "an agent that a fault had restarted was started again, and had no timer any more",
    6194: "the checker took an acknowledgement of a stopped copy for one of the original, which was"
    " never connected with the receiver",
    9155: "the run ended while an origin waited for its next epoch, after one of a copy of it",
    10184: "a rolled-back origin took copies of an unknown subscription for other publications",
    9330: "the checker relied on interest of a subscription that had ended, at a suspended origin",
}


WITH_STRATEGY = {
    (1554, "paths"): "the newest change of a peer was not the last one written, so its"
    " interest was never in force",
    (208, "tree-flood"): "an agent with an old state assigned subscription identifiers that its"
    " session had already, and captured queued copies twice",
    (1011, "paths"): "the checker did not know that subscriptions in a new session wait for a disk"
    " that stalls",
    (1685, "mesh"): "announcements that were refused before their cores were known were never sent"
    " again, and a node kept a longer route",
    (
        1764,
        "bridge-flood",
    ): "the checker did not know that a broker with handshakes of a newer state"
    " refuses publications for its quota",
    (371, "paths"): "a node with a restored older state announced no interest before it knew it",
    (2415, "mesh"): "the checker counted announcements of a core and of its copy as one",
    (2535, "mesh"): "the checker did not know that an announcement that overtook the record of a"
    " new link is sent again when the record arrives",
    (113, "mesh"): "like seed 2535, with a restarted core",
    (3673, "tree-flood"): "receipts named a path with a removed link, and reached the limit of hops"
    " on their way back from the gap",
    (4597, "tree-subscriptions"): "a filter that overlaps a share in part lingered, and the share"
    " was served twice",
    (30759, "bridge-flood"): "the checker looked at the journal of a copy of the origin",
    (963, "mesh"): "a fault came before a round-trip time on its way had reached all databases",
    (723, "paths"): "the run ended before a lost publication could be requested a third time",
    (2708, "tree-flood"): "the run ended before slow disks had delivered the publications that a"
    " roll-back adds",
    (3508, "tree-flood"): "the checker did not know that subscriptions in a new session wait for a"
    " disk that has failed",
    (3757, "tree-subscriptions"): "like seed 3508",
    (4426, "paths"): "like seed 3508",
    (4251, "paths"): "the checker did not know that only the origin reports what retention removed"
    " from an old copy of its journal",
    (4380, "mesh"): "a captured copy was dropped as an overlap copy when the broker sent it again,"
    " and the copy that decides, which came later, was captured, too",
    (3130, "mesh"): "the run ended before a returned node had what was abandoned at its lease",
    (
        15247,
        "tree-subscriptions",
    ): "a node was refused permanently, because others had forgotten a copy"
    " of it that had started later",
    (
        8910,
        "mesh",
    ): "a relay that may have one filter was refused membership of a group, because the"
    " interest in it was not known yet",
    (16270, "mesh"): "the checker took a link that was silent for one that is as fast as others",
    (18130, "mesh"): "the checker relied on interest of which a copy of the receiver had announced"
    " another version",
    (10094, "bridge-flood"): "the run ended before repairs over a slow link had arrived",
    (9933, "tree-flood"): "the checker did not know that a session can have filters of a lost state"
    " under the identifiers of others",
    (10744, "bridge-flood"): "the checker rounded the length of a separation below that of the"
    " lease that ended with it",
}


@pytest.mark.parametrize(("seed", "strategy"), WITH_STRATEGY)
def test_formerly_failing_seed_with_strategy(seed: int, strategy: str) -> None:
    assert simulate(random_options(seed, strategy)).violations == ()


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_formerly_failing_seed(seed: int) -> None:
    assert simulate(random_options(seed)).violations == ()
