"""Forty people release the mean and a histogram of their ages, and no single age."""

import asyncio

import dpnoise
import secagg

AGES = [(17 * person * person + 11) % 89 for person in range(40)]


async def main() -> None:
    """Release a noisy mean and a noisy histogram of forty ages, in this process."""
    age = dpnoise.Mean(lowest=0, highest=120)
    noise = secagg.plan(age, clients=40, min_survivors=36, epsilon=3.0, delta=1e-6)
    async with secagg.local(noise) as people:
        total = await people.sum(age.encode(one) for one in AGES)
    print(age.decode(total, confidence=1 - 1e-6), f"  truly {sum(AGES) / 40:.1f}")

    ages = dpnoise.Histogram((0, 18, 30, 65, 120))
    noise = secagg.plan(ages, clients=40, min_survivors=36, epsilon=3.0, delta=1e-6)
    async with secagg.local(noise) as people:
        total = await people.sum(ages.encode(one) for one in AGES)
    found = ages.decode(total, confidence=1 - 1e-6)
    own = [ages.encode(one) for one in AGES]
    for bucket, row in enumerate(str(found).splitlines()):
        print(f"{row}   truly {sum(vector[bucket] for vector in own)}")
    print(f"one count errs by {found.standard_error:.2f} at epsilon 3")


if __name__ == "__main__":
    asyncio.run(main())
