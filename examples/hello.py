"""The least there is."""

from kiwi_worker import Worker

worker = Worker()


@worker.method
def hello(name: str = "world") -> str:
    return f"hello {name}"


if __name__ == "__main__":
    worker.run()
