"""The protocol: two state machines without clock, entropy, sockets or files.

Start with `server.TRANSITIONS` and `client.TRANSITIONS`: they are the protocol. All
code here is deterministic; `secagg.runtime` supplies time, randomness and storage.
Interfaces of this package may change between minor releases. `protos/PROTOCOL.md` fixes
the bytes on the wire.
"""
