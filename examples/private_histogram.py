"""Forty people say how old they are, and nobody learns anybody's age: a histogram."""

import asyncio

import dpnoise
import secagg

AGES = [(17 * person * person + 11) % 89 for person in range(40)]


async def main() -> None:
    """Release one noisy histogram of forty ages, in this process."""
    ages = dpnoise.Histogram((0, 18, 30, 65, 120))
    noise = secagg.plan(
        **ages.bounds, clients=40, min_survivors=36, epsilon=3.0, delta=1e-6
    )
    task = secagg.PreparedTask.from_plan(noise)
    privacy_limits = secagg.PrivacyLimits(max_epsilon=3.0, max_delta=1e-6)
    async with secagg.local(task, clients=40, privacy_limits=privacy_limits) as people:
        total = await people.sum([ages.encode(age) for age in AGES])
    # The plan's figure is the most noise that can arrive: error bars are safe.
    found = ages.decode(
        total.values, noise_variance=noise.most_noise_mse, confidence=1 - 1e-6
    )
    own = [ages.encode(age) for age in AGES]
    for bucket, row in enumerate(str(found).splitlines()):
        print(f"{row}   truly {sum(vector[bucket] for vector in own)}")
    print(f"one count errs by {found.standard_error:.2f} at epsilon 3")


if __name__ == "__main__":
    asyncio.run(main())
