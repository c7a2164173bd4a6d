"""Twenty people add up their numbers, and no party learns any: a sum in 20 lines."""

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
    async with secagg.local(noise) as people:
        total = await people.sum([np.full(4, number / 20) for number in range(20)])
    print(total)  # about 9.5 everywhere


if __name__ == "__main__":
    asyncio.run(main())
