"""Rényi curves and the accountants that add them up."""
