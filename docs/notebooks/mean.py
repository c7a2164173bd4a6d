# %% [markdown]
# # A mean with its interval
#
# What is the mean age of a hundred people, if no single age may be learnt?

# %%
import dpnoise
import secagg
from secagg import blocking

ages = [(17 * person * person + 11) % 89 for person in range(100)]

# %% [markdown]
# A question knows how one answer becomes a vector, and what bounds that vector. The
# range must not come from the data. The noise grows with it.

# %%
age = dpnoise.Mean(lowest=0, highest=120)
plan = secagg.plan(age, clients=100, epsilon=1.0, delta=1e-6)
with blocking.local(plan) as people:
    total = people.sum(age.encode(one) for one in ages)
found = age.decode(total)
found

# %% [markdown]
# The interval covers noise and rounding. It says nothing about people who answered
# wrongly. A picture needs matplotlib.

# %%
found.plot()

# %%
print(f"{found}; truly {sum(ages) / len(ages):.1f}")
assert found.inputs == 100
assert abs(found.mean - sum(ages) / len(ages)) < 8.0 * found.standard_error
