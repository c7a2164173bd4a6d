"""The two long-running programs, assembled from settings and the parts below."""
