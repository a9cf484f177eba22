"""Profiles that are made up."""

from mtl.tools.profiling import profile, words

BACK = words.Place(words.NETWORK, is_backward=True)


def make(ops=100, op_secs=1e-4, passes=1, **wall):
    """A profile of 10 steps of 1 s each; `wall` holds the seconds of words, {NAME of words: secs}.

    The rest is the network's, forward.
    """
    places = {
        words.Place(getattr(words, name)): secs for name, secs in wall.items() if name != "back"
    }
    if "back" in wall:
        places[BACK] = wall["back"]
    network = words.Place(words.NETWORK)
    places[network] = 10 - sum(places.values())
    return profile.Profile(
        first=100,
        steps=10,
        calls=1,
        wall=places,
        op_time={network: ops * 10 * op_secs},
        num_ops={network: ops * 10},
        passes=passes,
    )
