"""Methods collected by a registry, away from the worker that serves them."""

from kiwi_worker import Registry, Worker

text = Registry()


@text.method
def upper(value: str) -> str:
    return value.upper()


@text.method("reverse")
def backwards(value: str) -> str:
    return value[::-1]


worker = Worker()
worker.include(text)

if __name__ == "__main__":
    worker.run()
