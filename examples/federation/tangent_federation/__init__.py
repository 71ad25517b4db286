"""A federation: contributors as Flower clients, a tangent_jax store as the server.

A contributor keeps its images and sends one file: a component (tangent weights, or statistics). The server checks it,
adds it to a store, composes, and removes with receipts. `contributor`, `collection`, `fixed_point` and `private` know
nothing of Flower; `client_app` and `server_app` carry their bytes.
"""
