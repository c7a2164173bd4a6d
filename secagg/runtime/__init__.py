"""The runtime around the protocol core: sessions, clocks, executors, clients.

It calls outwards only through interfaces that it defines itself.  So the same code runs
under gRPC, in the simulator and in the tests.
"""
