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
    clients=100,
    dimension=1024,
    delta=1e-5,
    repeats=5,
    one_draw=True,  # the noise of all shares at once: the same law, sooner
    seed=b"compare mechanisms, one budget..",
)
table

# %% [markdown]
# The reference is a trusted server that adds real numbers to exact sums. No mechanism
# whose clients add the noise errs much less.

# %%
measured = [
    (f"{row.mechanism}\n{row.bits} bits", row.mse, row.mse_low, row.mse_high)
    for row in table.rows
    if row.mse is not None and row.mse_low is not None and row.mse_high is not None
]
labels = [label for label, *_ in measured]
heights = [mse for _, mse, *_ in measured]
below = [mse - low for _, mse, low, _ in measured]
above = [high - mse for _, mse, _, high in measured]
figure, axes = plt.subplots(layout="constrained")
axes.bar(labels, heights, yerr=[below, above], capsize=4.0)
axes.axhline(table.rows[0].gaussian or 0.0, color="black", linestyle=":")
axes.set_ylabel("squared error of an entry; dotted: central Gaussian")

# %% [markdown]
# With 8 bits `skellam` has no plan: its rounding needs a finer grid than they hold. The
# default `skellam-mixture` comes close to the trusted server with both.

# %%
ratios = {
    (row.mechanism, row.bits): row.mse / row.gaussian
    for row in table.rows
    if row.mse is not None and row.gaussian is not None
}
for (mechanism, bits), ratio in ratios.items():
    print(f"{mechanism} with {bits} bits errs {ratio:.2f} times as much")
assert ratios["skellam-mixture", 12] < 1.5
assert ratios["skellam-mixture", 8] < 1.5
assert [(row.mechanism, row.bits) for row in table.rows if row.refused] == [
    ("skellam", 8)
]
