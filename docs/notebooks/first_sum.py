# %% [markdown]
# # A first private sum
#
# Twenty clients have a vector each. The server learns their noisy sum and no vector.
# Here all of them run in this process; over a network the calls are the same.

# %%
import numpy as np

import secagg
from secagg import blocking

vectors = [np.full(4, 0.5)] * 20

# %% [markdown]
# A plan fixes the noise before any vector exists. `l2_clip` bounds the length of a
# vector: longer ones are shortened. ε and δ say how little one vector may show.

# %%
plan = secagg.plan(clients=20, dimension=4, l2_clip=1.0, epsilon=8.0, delta=1e-6)
plan

# %% [markdown]
# Every client masks its vector and adds its share of the noise. The masks cancel in the
# sum, and the noise stays.

# %%
with blocking.local(plan) as people:
    total = people.sum(vectors)
print(total)

# %% [markdown]
# Each entry is 10 without noise. The sum says how exact it is.

# %%
lowest, highest = total.interval(0.95)
print("mean of a client:", total.mean.round(2))
print("95 % intervals of the sum:", lowest.round(1), "to", highest.round(1))

# %%
assert total.inputs == 20
assert total.standard_error is not None
assert abs(total.values - 10.0).max() < 8.0 * total.standard_error
