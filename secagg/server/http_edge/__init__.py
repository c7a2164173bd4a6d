"""The HTTP edge: the unary calls of clients that cannot show a certificate."""
