# %% [markdown]
# # Comparing mechanisms
#
# Which mechanism errs least at a given budget, if a coordinate may take so many bits?
# Each is planned for the same (ε, δ), and measured by a few sums.

# %%
import matplotlib.pyplot as plt

from dpnoise import bench

table = bench.compare(
    mechanisms=["skellam-mixture", "skellam"],
    bits=[8, 12],
    epsilons=[1.0],
    clients=20,
    dimension=64,
    delta=1e-5,
    repeats=3,
    seed=b"compare mechanisms, one budget..",
)
table

# %% [markdown]
# The reference is a trusted server that adds real numbers to exact sums. No mechanism
# whose clients add the noise can beat it by much.

# %%
ratios = {
    (row.mechanism, row.bits): row.mse / row.gaussian
    for row in table.rows
    if row.mse is not None and row.gaussian is not None
}
figure, axes = plt.subplots(layout="constrained")
labels = [f"{mechanism}\n{bits} bits" for mechanism, bits in ratios]
axes.bar(labels, list(ratios.values()))
axes.axhline(1.0, color="black", linewidth=0.8)
axes.set_ylabel("error over the central Gaussian's")
axes.set_yscale("log")

# %% [markdown]
# With few bits `skellam` pays for its rounding, and the default `skellam-mixture` hardly
# does. With enough bits both come close to the trusted server. A cell of the table that
# has no error says why no plan was made.

# %%
for (mechanism, bits), ratio in ratios.items():
    print(f"{mechanism} with {bits} bits errs {ratio:.2f} times as much")
assert ratios["skellam-mixture", 12] < 2.0
assert ratios["skellam-mixture", 8] < ratios["skellam", 8]
