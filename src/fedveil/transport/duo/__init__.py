"""Two servers that aggregate robustly without ever seeing an update (SPEC 7).

Clients encrypt under CKKS and send to S2. S1 and S2 turn ciphertexts into shares modulo 2^64, decide in secret which
uploads are within the norm bound, open to S1 a few numbers that tell an attack, and apply a robust rule to shares. The
clients put the result together. Both servers follow the protocol and do not work together; the key centre has left.

``parameters``
    rings and fixed point, checked for 128 bits of security; ``Plan``: what everybody knows beforehand.
``dealer``
    the key centre: keys, seeds, correlated randomness (on demand, or ahead into files).
``client``
    ``Sealer`` encrypts an upload; ``combine`` and ``decrypt`` put a result together; ``unsealed`` checks an upload.
``round``
    ``Server`` and ``Round``: a server's program, the same for both. A round goes

    >>> def program(server, number, uploads=None, reference=None):  # at S2 with uploads, at S1 without
    ...     round = server.round(number, uploads, reference=reference)
    ...     seen = round.sense()                          # at S1 E, M, Q, A, ‖r‖; None at S2
    ...     rule = round.announce("rule", "mean" if seen else None)  # S1's controller decides
    ...     update = round.aggregate(rule)                # a share; the next round's ``reference``
    ...     return update, round.deliver(update)          # bytes for the clients

``link``
    what the servers say to each other, and the record of what either got to see; ``pair`` and ``together`` run both
    in one process.
``stream``, ``material``, ``party``, ``bits``, ``wide``, ``fixed``
    two-party computation: common randomness, shares, comparisons, numbers with a point.
``lattice``, ``convert``, ``check``, ``entropy``, ``rules``, ``deliver``
    SEAL's polynomials; ciphertexts to shares; the norm bound; H under encryption; rules; ways to the clients.
"""
