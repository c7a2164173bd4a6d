"""Twenty people add up their numbers, and nobody learns anybody's: sums in 20 lines."""

import asyncio

import numpy as np

import secagg


async def main() -> None:
    """Release one noisy sum of twenty vectors, in this process."""
    noise = secagg.plan(
        clients=20,
        min_survivors=18,
        dimension=4,
        l2_clip=2.0,
        epsilon=8.0,
        delta=1e-6,
        mechanism="skellam",
    )
    task = secagg.PreparedTask.from_plan(noise)
    privacy_limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-6)
    async with secagg.local(task, clients=20, privacy_limits=privacy_limits) as people:
        total = await people.sum([np.full(4, number / 20) for number in range(20)])
    print(f"the sum of {total.inputs} vectors, about 9.5 everywhere: {total.values}")


if __name__ == "__main__":
    asyncio.run(main())
