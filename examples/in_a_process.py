"""A handler in a process of its own: a hard time limit, and a crash that costs one call."""

from kiwi_worker import Worker

worker = Worker(process_recycle_calls=1000)


@worker.method(executor="process", time_limit=5)
def primes(below: int) -> int:
    sieve = bytearray([1]) * below
    sieve[:2] = b"\0\0"
    for number in range(2, int(below**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, below, number)))
    return sum(sieve)


if __name__ == "__main__":
    worker.run()
