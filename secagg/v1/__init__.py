"""GENERATED from protos/secagg/v1 by `make proto`; never edited by hand.

Only `secagg.wire` and `secagg.transport` import it.
"""
