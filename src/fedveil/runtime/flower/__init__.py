"""FedVeil over Flower: the same methods, transports and ledger, with clients on nodes of their own.

``client_app:app`` and ``server_app:app`` are what a Flower app names; :mod:`~fedveil.runtime.flower.simulation` runs
them on this machine or a Ray cluster. What passes between them is in :mod:`~fedveil.runtime.flower.messages`.
"""
