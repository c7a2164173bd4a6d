"""Five people add up their numbers, and nobody learns anybody's: sums in 20 lines."""

import asyncio

import numpy as np

import secagg


async def main() -> None:
    """Release one noisy sum of five vectors, in this process."""
    cohort = secagg.Cohort(min_clients=5, max_clients=5, min_survivors=4)
    noise = secagg.plan(
        clients=5, dimension=8, l2_clip=3.0, epsilon=4.0, delta=1e-6, min_survivors=4
    )
    task = secagg.PreparedTask.from_plan(noise, cohort)
    floors = secagg.PrivacyFloors(max_epsilon=4.0, max_delta=1e-6)
    async with secagg.local(task, clients=5, floors=floors) as people:
        total = await people.sum([np.full(8, number / 5) for number in range(5)])
    print(f"the sum of {total.inputs} vectors, about 2 everywhere: {total.values}")


if __name__ == "__main__":
    asyncio.run(main())
