"""The machinery around the protocol core: sessions, clocks, executors, clients.

Everything here calls outwards only through interfaces that it defines itself, so that
the same code runs under gRPC, in the simulator and in the tests.
"""
