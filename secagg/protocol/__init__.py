"""The protocol itself: two state machines without clock, entropy, sockets or files.

Read `server.TRANSITIONS` and `client.TRANSITIONS` first: they are the protocol.
Everything here is deterministic; `secagg.runtime` supplies time, randomness and
storage.  Interfaces of this package may change between minor releases; the bytes on
the wire are fixed by `protos/PROTOCOL.md`.
"""
