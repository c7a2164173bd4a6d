"""Graphs of pairwise masks: their choice, safety bounds and neighbours."""
