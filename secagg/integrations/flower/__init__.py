"""Private sums in Flower: a grid around the server's, a mod around the client's app.

Server: `SecureGrid(grid, task, strategy)`.  Client: `ClientApp(mods=[secagg_mod()])`.
A strategy gets one reply for each round: the mean of all updates, with noise.  What a
node accepts is in a file of the node (`secagg.integrations.flower.terms`).
"""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
