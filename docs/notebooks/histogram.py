# %% [markdown]
# # A histogram
#
# How many people of each group of age are there, if no single age may be learnt?

# %%
import dpnoise
import secagg
from secagg import blocking

ages = [(17 * person * person + 11) % 89 for person in range(100)]

# %% [markdown]
# A person sends a one in its bucket and zeros elsewhere, with a share of the noise. One
# person changes one count by one, however many buckets there are.

# %%
ages_in = dpnoise.Histogram((0, 18, 30, 65, 120))
plan = secagg.plan(ages_in, clients=100, epsilon=1.0, delta=1e-6)
with blocking.local(plan) as people:
    counts = ages_in.decode(people.sum(ages_in.encode(one) for one in ages))
counts

# %% [markdown]
# All intervals hold together with 95 percent. Counts may be negative: noise knows no
# zero.

# %%
counts.plot()

# %%
own = [ages_in.encode(one) for one in ages]
truth = [int(sum(vector[place] for vector in own)) for place in range(4)]
print(counts)
print("truly", truth)
found = [estimate.value for _, estimate in counts.estimates]
errors = [abs(value - true) for value, true in zip(found, truth, strict=True)]
assert max(errors) < 10.0 * counts.standard_error
